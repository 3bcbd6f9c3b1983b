"""Training records: a query with a passage that answers it, and passages that do not; of one data set or several.

Files may have the columns under the names that people give them: query, anchor or question; positive, passage, pos,
answer or document; negative, negatives, neg, or negative_1, negative_2 and so on. Positives and negatives are texts or
lists of texts, and a record with several positives is one record for each of them.

Several data sets are drawn in the proportion of their weights:

    sources = read_mixture(["questions.jsonl:3", "forum.parquet:1"], limit=100_000)
    Mixed([rows_of(source.records) for source in sources], [source.weight for source in sources])
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.table_files import EVERY_KIND, Table, read_table, text_fault
from samestep.data.table_formats import TableRow, inner_suffix

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "passage", "pos", "answer", "document")
NEGATIVE = ("negative", "negatives", "neg")
_CELLS = (".csv", ".tsv")
"""Kinds that have only texts."""
_NUMBERED = re.compile(r"negative_\d+")
_IGNORED = re.compile(r"_?idx?|source|(.*_)?(ids?|scores?)")
"""Columns that say nothing about the texts: ids, scores, and where a record is from."""


@dataclass(frozen=True)
class Record:
    """A query, a passage that answers it, and passages that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()


def read_records(path: str, limit: int | None = None) -> list[Record]:
    """The records of a file (.jsonl, .json, .csv, .tsv, .parquet), or of a folder of `datasets.save_to_disk`.

    These are the first `limit` of them. Whatever is wrong with what is read is said in one sentence.
    """
    table = read_table(path, EVERY_KIND, limit)
    columns = _Columns.of(table)
    records = [record for row in table.rows for record in _records(table, row, columns)]
    table.check()
    return records[:limit]


@dataclass(frozen=True)
class _Columns:
    """Which columns of a table are what."""

    query: str
    positive: str
    negatives: Sequence[str]
    absent: tuple[Any, ...]
    """What stands for no negatives."""

    @classmethod
    def of(cls, table: Table) -> "_Columns":
        """Found by their names; those that are missing or ambiguous are refused, others are problems of the table."""
        names = table.columns
        query, positive = (_only(table, names, known) for known in (QUERY, POSITIVE))
        negatives = sorted(filter(_NUMBERED.fullmatch, names), key=lambda name: int(name.split("_")[1]))
        listed = [name for name in names if name in NEGATIVE]
        if len(listed) + bool(negatives) > 1:
            raise UserError(f"Keep one kind of negatives in {table.file}; it has {_listed([*listed, *negatives])}.")
        negatives += listed
        for name in names:
            if name not in (query, positive, *negatives) and not _IGNORED.fullmatch(name):
                first = next(row for row in table.rows if name in row.values)
                table.add_problem(first, f"rename or remove the column {name!r}, which a record does not have")
        return cls(query, positive, negatives, ("", None) if inner_suffix(table.file) in _CELLS else (None, []))


def _only(table: Table, names: Sequence[str], known: Sequence[str]) -> str:
    found = [name for name in names if name in known]
    if len(found) != 1:
        having = f"it has {_listed(found or names)}"
        raise UserError(f"Give {table.file} one column of the names {', '.join(known)}; {having}.")
    return found[0]


def _records(table: Table, row: TableRow, columns: _Columns) -> Iterator[Record]:
    """The records of a row; what is wrong with it becomes a problem of the table."""
    wrong = [f"{columns.query!r} {fault}"] if (fault := text_fault(row.values.get(columns.query))) else []
    positives = _texts(row, columns.positive, wrong)
    if not positives and not wrong:
        wrong.append(f"{columns.positive!r} has no text")
    present = [name for name in columns.negatives if row.values.get(name) not in columns.absent]
    negatives = [text for name in present for text in _texts(row, name, wrong)]
    if not wrong and set(positives) & set(negatives):
        wrong.append(f"a text is {columns.positive!r} and negative at once")
    if wrong:
        table.add_problem(row, ", ".join(wrong))
        return
    unique = tuple(dict.fromkeys(negatives))
    yield from (Record(row.values[columns.query], positive, unique) for positive in dict.fromkeys(positives))


def _texts(row: TableRow, column: str, wrong: list[str]) -> list[str]:
    """The text or the texts of a column; what is wrong with them is added to `wrong`."""
    value: Any = row.values.get(column)
    if column == "negatives" and isinstance(value, str):
        wrong.append(
            "'negatives' is a text, not a list of texts; call the column 'negative', or negative_1, negative_2"
        )
        return []
    if not isinstance(value, list):
        value = [value]
    faults = [f"{column!r} {fault}" for text in value if (fault := text_fault(text))]
    wrong += dict.fromkeys(faults)
    return [] if faults else value


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


@dataclass(frozen=True)
class Source:
    """The records of one data set."""

    path: str
    weight: float
    """Its share of the draws, in proportion to the weights of the others."""
    records: list[Record]


def parse_sources(named: Sequence[str]) -> list[tuple[str, float | None]]:
    """Paths with their weights, each spelled `path:weight`, or all of them `path`; None where no weight is given."""
    if not named:
        raise UserError("Name at least one data set, as PATH or PATH:WEIGHT.")
    sources = [_parse_source(text) for text in named]
    bare = [path for path, weight in sources if weight is None]
    if bare and len(bare) < len(sources):
        raise UserError(f"Give every data set a weight, as PATH:WEIGHT, or none; {', '.join(bare)} has none.")
    paths = [path for path, _ in sources]
    if repeated := sorted({path for path in paths if paths.count(path) > 1}):
        raise UserError(f"Name each data set once, with the sum of its weights; {', '.join(repeated)} comes twice.")
    return sources


def read_mixture(named: Sequence[str], limit: int | None = None) -> list[Source]:
    """The records of all data sets. Without weights, each has as many draws as records.

    At most `limit` records of each are read, and of more in all, each data set keeps its share, from the beginning.
    """
    sources = parse_sources(named)
    every = _read_all([path for path, _ in sources], limit)
    found = [
        Source(path, len(records) if weight is None else weight, records)
        for (path, weight), records in zip(sources, every)
    ]
    return _shares(found, limit) if limit is not None else found


def _parse_source(text: str) -> tuple[str, float | None]:
    path, colon, number = text.rpartition(":")
    if not colon or expand_home(text).exists():
        return text, None
    try:
        weight = float(number)
    except ValueError:
        return text, None
    if not path or not (math.isfinite(weight) and weight > 0):
        raise UserError(f"Write a data set as PATH:WEIGHT with a weight above 0; this is {text!r}.")
    return path, weight


def _read_all(paths: Sequence[str], limit: int | None) -> list[list[Record]]:
    """What is wrong with any of the files is said at once."""
    every, problems = [], []
    for path in paths:
        try:
            every.append(read_records(path, limit))
        except UserError as problem:
            problems.append(str(problem))
    if problems:
        raise UserError("\n".join(problems))
    return every


def _shares(sources: Sequence[Source], limit: int) -> list[Source]:
    """The first records of each source, in proportion to the weights; what a short one leaves goes to the others."""
    if limit < len(sources):
        raise UserError(f"Allow at least one record for each of the {len(sources)} data sets; the limit is {limit}.")
    turns = [
        (place / source.weight, number) for number, source in enumerate(sources) for place in range(len(source.records))
    ]
    counts = Counter(number for _, number in sorted(turns)[:limit])
    return [replace(source, records=source.records[: counts[number]]) for number, source in enumerate(sources)]
