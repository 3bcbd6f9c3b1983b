"""A row of a file, and what is wrong with one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """A row by the names of its columns, and where it is."""

    where: str
    values: dict[str, Any]
    is_cells: bool = False
    """Whether all its values are texts, as in a table."""
    number: int = 0
    """Its place among the rows of all files."""
    source: int = 0
    """Which of several paths it is from."""
    file: Path | None = None
    """The file it is in, unless that is one of a saved dataset."""


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be used, and where it is."""

    where: str
    text: str
    about: str = "format"
    """The same in a word or two, by which problems are counted."""
    number: int = 0


Rows = Iterator[Row | Problem]


def repeated(names: Sequence[str]) -> list[str]:
    """The names that come more than once."""
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
