"""Samples of a run in a page, by the kind that they were written with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samestep.core.pages.html import Html

Samples = Sequence[Mapping[str, Any]]


def shown_samples(runs: Sequence[tuple[str, Samples]]) -> Iterator[Html]:
    """A section for each run that has samples."""
    yield from ()
