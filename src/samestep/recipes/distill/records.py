"""Training records: a query with a passage that answers it, and passages that do not.

Files may have the columns under the names that people give them: query, anchor or question; positive, passage, pos,
answer or document; negative, negatives, neg, or negative_1, negative_2 and so on. Positives and negatives are texts or
lists of texts, and a record with several positives is one record for each of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep import UserError
from samestep.core.errors import quoted
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
            raise UserError(f"Keep one kind of negatives in {read.path}; it has {quoted([*listed, *numbered])}.")
        read.expect([QUERY, POSITIVE, (*NEGATIVE, *numbered)], lists=[*POSITIVE, *NEGATIVE])
        query, positive = (_only(read, known) for known in (QUERY, POSITIVE))
        return cls(query, positive, [*numbered, *listed])


def _only(read: Records, known: Sequence[str]) -> str:
    names = read.columns
    found = [name for name in names if name in known]
    if len(found) != 1:
        read.check()  # a misspelt column says more
        raise UserError(
            f"Give {read.path} one column of the names {', '.join(known)}; it has {quoted(found or names)}."
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
