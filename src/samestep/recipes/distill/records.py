"""stub"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """A query, a passage that answers it, and passages that do not."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
