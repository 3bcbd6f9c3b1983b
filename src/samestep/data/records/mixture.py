"""Several data sets that are drawn in the proportion of their weights.

sources = read_mixture(["questions.jsonl:3", "forum.parquet:1"], read_pairs, limit=100_000)
Mixed([rows_of(source.records) for source in sources], [source.weight for source in sources])
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from samestep.core.errors import UserError
from samestep.core.paths import expand_home

T = TypeVar("T")


@dataclass(frozen=True)
class Source(Generic[T]):
    """The records of one data set."""

    path: str
    weight: float
    """Its share of the draws, in proportion to the weights of the others."""
    records: list[T]


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


def shown(path: str | Sequence[str] | None) -> str:
    """One or several paths as text; empty where there is none."""
    return path if isinstance(path, str) else ", ".join(path or ())


def read_mixture(named: Sequence[str], read: Callable[[str], list[T]], limit: int | None = None) -> list[Source[T]]:
    """The records of all data sets. Without weights, each has as many draws as records.

    At most `limit` records of each are read, and of more in all, each data set keeps its share, from the beginning.
    """
    sources = parse_sources(named)
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


def _read_all(paths: Sequence[str], read: Callable[[str], list[T]]) -> list[list[T]]:
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


def _shares(sources: Sequence[Source[T]], limit: int) -> list[Source[T]]:
    """The first records of each source, in proportion to the weights; what a short one leaves goes to the others."""
    if limit < len(sources):
        raise UserError(f"Allow at least one record for each of the {len(sources)} data sets; the limit is {limit}.")
    turns = [
        (place / source.weight, number) for number, source in enumerate(sources) for place in range(len(source.records))
    ]
    counts = Counter(number for _, number in sorted(turns)[:limit])
    return [replace(source, records=source.records[: counts[number]]) for number, source in enumerate(sources)]
