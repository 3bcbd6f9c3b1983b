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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from samestep import UserError
from samestep.core.paths import expand_home
from samestep.data.records.reading import Records, text_fault
from samestep.data.records.rows import Row

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "passage", "pos", "answer", "document")
NEGATIVE = ("negative", "negatives", "neg")
_NUMBERED = re.compile(r"negative_\d+")


@dataclass(frozen=True)
class Record:
    """A query, a passage that answers it, and passages that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()


def read_records(
    path: str, limit: int | None = None, columns: Mapping[str, str] | None = None, skip_invalid: bool = False
) -> list[Record]:
    """The records of a file or folder, or the first `limit`. What is wrong with any of them is said at once."""
    read = Records(path, columns, limit)
    names = _Columns.of(read)
    records = [record for row in read.rows for record in _records(read, row, names)]
    read.check(skip_invalid)
    return records[:limit]


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file are what."""

    query: str
    positive: str
    negatives: Sequence[str]

    @classmethod
    def of(cls, read: Records) -> "_Columns":
        """Found by their names; those that are missing or ambiguous are refused."""
        names = read.columns
        numbered = sorted(filter(_NUMBERED.fullmatch, names), key=lambda name: int(name.split("_")[1]))
        listed = [name for name in names if name in NEGATIVE]
        if len(listed) + bool(numbered) > 1:
            raise UserError(f"Keep one kind of negatives in {read.path}; it has {_listed([*listed, *numbered])}.")
        read.expect([QUERY, POSITIVE, (*NEGATIVE, *numbered)], lists=[*POSITIVE, *NEGATIVE])
        query, positive = (_only(read, known) for known in (QUERY, POSITIVE))
        return cls(query, positive, [*numbered, *listed])


def _only(read: Records, known: Sequence[str]) -> str:
    names = read.columns
    found = [name for name in names if name in known]
    if len(found) != 1:
        read.check()  # a misspelt column says more
        raise UserError(
            f"Give {read.path} one column of the names {', '.join(known)}; it has {_listed(found or names)}."
        )
    return found[0]


def _records(read: Records, row: Row, columns: _Columns) -> Iterator[Record]:
    """The records of a row; what is wrong with it is kept."""
    wrong = [f"{columns.query!r} {fault}"] if (fault := text_fault(row.values.get(columns.query))) else []
    positives = _texts(row, columns.positive, wrong)
    if not positives and not wrong:
        wrong.append(f"{columns.positive!r} has no text")
    present = [name for name in columns.negatives if row.values.get(name) not in (None, [])]
    negatives = [text for name in present for text in _texts(row, name, wrong)]
    if not wrong and set(positives) & set(negatives):
        wrong.append(f"a text is {columns.positive!r} and negative at once")
    if wrong:
        read.refuse(row, ", ".join(wrong))
        return
    unique = tuple(dict.fromkeys(negatives))
    yield from (Record(row.values[columns.query], positive, unique) for positive in dict.fromkeys(positives))


def _texts(row: Row, column: str, wrong: list[str]) -> list[str]:
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


def read_mixture(
    named: Sequence[str],
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
    skip_invalid: bool = False,
) -> list[Source]:
    """The records of all data sets. Without weights, each has as many draws as records.

    At most `limit` records of each are read, and of more in all, each data set keeps its share, from the beginning.
    """
    sources = parse_sources(named)
    read = partial(read_records, limit=limit, columns=columns, skip_invalid=skip_invalid)
    every = _read_all([path for path, _ in sources], read)
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


def _read_all(paths: Sequence[str], read: Callable[[str], list[Record]]) -> list[list[Record]]:
    """What is wrong with any of the files is said at once."""
    every, problems = [], []
    for path in paths:
        try:
            every.append(read(path))
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
