"""What a launcher tells a process of its place among the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One process among its peers. `grouped` is false only for a lone process that nobody launched."""

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    grouped: bool = True
