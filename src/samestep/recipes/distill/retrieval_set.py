"""x"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RetrievalSet:
    queries: list[str]
    passages: list[str]
    relevant: list[dict[int, float]]
