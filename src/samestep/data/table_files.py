"""Rows of a table in a file or a folder. Whatever is wrong in it is named by its row, and all of it at once."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data.saved_datasets import dataset_rows, is_saved_dataset
from samestep.data.table_formats import FORMATS, GZIP, LINES, Format, RowProblem, TableRow, inner_suffix
from samestep.data.text import JSONL, PACKED, existing_file

SHOWN = 10
"""How many problems of a file are listed; of the others, the number is said."""
PLAIN = (".csv", *JSONL)
"""Tables that can be read as text, line by line."""
SAVED_DATASET = "a folder of datasets.save_to_disk"
EVERY_KIND = (*FORMATS, GZIP, SAVED_DATASET)


@dataclass
class Table:
    """What could be read of a file."""

    file: Path
    rows: list[TableRow] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    """What is wrong, and on which line."""

    @property
    def columns(self) -> list[str]:
        """The columns that any row has, in the order in which they appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row.values))

    def texts(self, row: TableRow, columns: Sequence[str]) -> dict[str, str] | None:
        """A row's texts in these columns; None if one is missing, which becomes a problem of the file."""
        wrong = [f"{column!r} {reason}" for column in columns if (reason := text_fault(row.values.get(column)))]
        if wrong:
            self.add_problem(row, ", ".join(wrong))
            return None
        return {column: row.values[column] for column in columns}

    def add_problem(self, row: TableRow, text: str) -> None:
        """Say what is wrong with a row."""
        self.problems.append((row.line, f"{row.where}: {text}"))

    def check(self) -> None:
        """Refuse a file with problems, all in one sentence."""
        if not self.problems:
            return
        more = len(self.problems) - SHOWN
        listed = "; ".join(text for _, text in sorted(self.problems)[:SHOWN]) + (f"; and {more} more" * (more > 0))
        raise UserError(f"Fix {self.file}: {listed}.")


def read_table(path: str, kinds: Sequence[str] = PLAIN, limit: int | None = None) -> Table:
    """The rows of a file, or its first `limit`; what is wrong with single rows is kept, for the caller to add to.

    `kinds` are the endings that are read, and `SAVED_DATASET` for folders.
    """
    table = Table(expand_home(path))
    if SAVED_DATASET in kinds and is_saved_dataset(table.file):
        rows = dataset_rows(table.file)
    else:
        rows = _format(path, kinds)(table.file)
    with closing(rows):
        for row in rows if limit is None else islice(rows, limit):
            if isinstance(row, RowProblem):
                table.problems.append((row.line, row.text))
            else:
                table.rows.append(row)
    if not table.rows:
        table.check()
        raise UserError(f"Give a file with rows; {path} has none.")
    return table


def _format(path: str, kinds: Sequence[str]) -> Format:
    file = existing_file(path, packed=[ending for ending in PACKED if ending not in kinds])
    kind = inner_suffix(file)
    if kind not in kinds or kind not in FORMATS:
        endings = [ending for ending in kinds if ending in FORMATS]
        endings += [f"{ending}{GZIP}" for ending in LINES if GZIP in kinds]
        raise UserError(f"Give a file that ends with {', '.join(endings)}; {path} does not.")
    return FORMATS[kind]


def text_fault(value: Any) -> str:
    """Why a value is no text; empty if it is."""
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return f"is no text but {json.dumps(value, default=str)[:40]}"
    if not value.strip():
        return "is empty"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return ""
