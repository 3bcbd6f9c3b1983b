"""The texts of all records, each once: what a teacher has to read."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.recipes.distill.records import Record


@dataclass(frozen=True)
class IndexedRecord:
    """A record by the numbers of its texts."""

    query: int
    positive: int
    negatives: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextTable:
    """Every distinct query and every distinct passage, in the order in which they first appear.

    Queries and passages are numbered apart, because a model may read them with different instructions.
    """

    queries: list[str]
    passages: list[str]
    rows: list[IndexedRecord]
    """The records, in their order."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "TextTable":
        """The table of these records."""
        queries: dict[str, int] = {}
        passages: dict[str, int] = {}

        def passage(text: str) -> int:
            return passages.setdefault(text, len(passages))

        rows = [
            IndexedRecord(
                queries.setdefault(record.query, len(queries)),
                passage(record.positive),
                tuple(map(passage, record.negatives)),
            )
            for record in records
        ]
        return cls(list(queries), list(passages), rows)
