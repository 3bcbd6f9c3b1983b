"""Rows of a CSV or JSONL file. Whatever is wrong in it is named by its row, and all of it at once."""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep import UserError
from samestep.data.text import JSONL, existing_file

SHOWN = 10
"""How many problems of a file are listed; of the others, the number is said."""


@dataclass(frozen=True)
class TableRow:
    """A row, and where it is."""

    line: int
    """The line that it begins on."""
    where: str
    values: dict[str, Any]


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
        wrong = [f"{column!r} {reason}" for column in columns if (reason := _fault(row.values.get(column)))]
        if wrong:
            self.problems.append((row.line, f"{row.where}: {', '.join(wrong)}"))
            return None
        return {column: row.values[column] for column in columns}

    def check(self) -> None:
        """Refuse a file with problems, all in one sentence."""
        if not self.problems:
            return
        more = len(self.problems) - SHOWN
        listed = "; ".join(text for _, text in sorted(self.problems)[:SHOWN]) + (f"; and {more} more" * (more > 0))
        raise UserError(f"Fix {self.file}: {listed}.")


def read_table(path: str) -> Table:
    """The rows of a file; problems of single rows are kept in the table, for the caller to add to."""
    file = existing_file(path)
    kind = file.suffix.lower()
    if kind != ".csv" and kind not in JSONL:
        raise UserError(f"Give a file that ends with {', '.join(('.csv', *JSONL))}; {path} does not.")
    table = Table(file)
    lines = _decoded_lines(table)
    if kind in JSONL:
        _read_jsonl(table, lines)
    elif not table.problems:  # a row may go over several lines, so one that is unreadable spoils what follows
        with _fields_of_any_length():
            _read_csv(table, lines)
    if not table.rows:
        table.check()
        raise UserError(f"Give a file with rows; {path} has none.")
    return table


def _fault(value: Any) -> str:
    """Why a value is no text; empty if it is."""
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return f"is no text but {json.dumps(value)[:40]}"
    if not value.strip():
        return "is empty"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return ""


def _decoded_lines(table: Table) -> list[tuple[int, str]]:
    """The lines of a file with their numbers; those that are not UTF-8 become problems."""
    lines = []
    for number, line in enumerate(table.file.read_bytes().splitlines(keepends=True), start=1):
        try:
            lines.append((number, line.decode("utf-8-sig" if number == 1 else "utf-8")))
        except UnicodeDecodeError as problem:
            table.problems.append((number, f"line {number}: not UTF-8 at byte {problem.start + 1}"))
    return lines


def _read_jsonl(table: Table, lines: Sequence[tuple[int, str]]) -> None:
    for number, line in lines:
        if not line.strip():
            continue
        where, problem = f"line {number}", ""
        try:
            value = json.loads(line.rstrip("\r\n"), object_pairs_hook=_without_repeats)
        except json.JSONDecodeError as error:
            problem = f"not JSON, {error.msg} at column {error.colno}"
        except _RepeatedKey as error:
            problem = f"the key {error} comes twice"
        except (ValueError, RecursionError):
            problem = "not JSON that can be read: a number is too long, or it is nested too deeply"
        else:
            problem = "" if isinstance(value, dict) else "not a JSON object"
        if problem:
            table.problems.append((number, f"{where}: {problem}"))
        else:
            table.rows.append(TableRow(number, where, value))


class _RepeatedKey(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are different; json would keep the last one in silence."""
    if repeated := _repeated([key for key, _ in pairs]):
        raise _RepeatedKey(repr(repeated[0]))
    return dict(pairs)


def _read_csv(table: Table, lines: Sequence[tuple[int, str]]) -> None:
    reader = csv.reader((line for _, line in lines), strict=True)
    header: list[str] | None = None
    number, first_line = 0, 1
    try:
        for values in reader:
            line, first_line = first_line, reader.line_num + 1
            if not values:
                continue
            if header is None:
                header = values
                if repeated := _repeated([name for name in header if name]):
                    table.problems.append((line, f"the header has {', '.join(map(repr, repeated))} twice"))
                    return
                continue
            number += 1
            where = f"row {number} (line {line})"
            if len(values) == len(header):
                table.rows.append(TableRow(line, where, dict(zip(header, values))))
            else:
                table.problems.append((line, f"{where}: {len(values)} values for {len(header)} columns"))
    except csv.Error as problem:
        table.problems.append((first_line, f"row {number + 1} (line {first_line}): {problem}"))


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Python's limit of 128 KiB is less than a long story."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
