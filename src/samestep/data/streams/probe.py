"""Looks at the first rows of a stream at the start of a launch: whether it can be replayed, and how it is resumed."""

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

from torch.utils.data import Dataset

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.data.random_state import random_state_kept
from samestep.data.row_digest import RowDigest, digest_of
from samestep.data.row_randomness import RandomnessWatch
from samestep.data.streams.source import Passes, Source, whole_stream
from samestep.data.streams.stream import first_rows

_FEW = 4
"""Rows that are read before a state is taken, and after."""
_WHY = "so it would differ between ranks, and after a resume"


class RandomStream(UserError):
    """A stream is another one each time it is read. The message goes on after the name of the data."""


class StreamProbe(Dataset):
    """As a dataset, so that a loader process can look at the stream: what is open here would be open in all of them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, _: int) -> dict[str, Json]:
        """The digest of the first rows, and whether a resume may use the source's own state."""
        with random_state_kept():
            first_rows(self._source)  # the first read may open files or make generators, and that only once
            watch = RandomnessWatch(self._source.data)
            try:
                digest = self._read(watch)
            finally:
                watch.restore()
            return {"digest": digest.to_json(), "uses_state": self._source.has_state and _is_state_exact(self._source)}

    def _read(self, watch: RandomnessWatch) -> RowDigest:
        rows, generator = watch.read(lambda: first_rows(self._source))
        if generator is not None:
            raise RandomStream(
                f"is random: reading the stream draws from {generator.name}, {_WHY}; let the feed shuffle "
                "(samestep.stream(..., buffer=...)), and draw in a function of a row (samestep.augmented)"
            )
        digest = digest_of(rows)
        if not digest.same_as(digest_of(first_rows(self._source))):
            raise RandomStream(
                f"differs each time it is read from its beginning, {_WHY}; give its shuffling a fixed seed, or let the "
                "feed shuffle (samestep.stream(..., buffer=...)); an iterator that is made once is used up"
            )
        return digest


class StreamCount(Dataset):
    """The rows of a pass, counted by reading one; a dataset for the same reason."""

    def __init__(self, source: Source, moved: Callable[[], None]) -> None:
        self._source, self._moved = source, moved

    def __getitem__(self, _: int) -> int:
        passes = Passes(self._source)
        while not passes.position().length:
            next(passes)
            self._moved()
        return passes.position().length


def _is_state_exact(source: Source) -> bool:
    """Whether reading on from a state gives the next rows. A dataset with a shuffle buffer loses those in it."""
    data, rows = source.open(0)
    _read(rows)
    try:
        state = data.state_dict()
        known = json.loads(json.dumps(state))
        wanted = digest_of(_read(rows))
        return known == state and wanted.same_as(digest_of(_read(source.open(0, known)[1])))
    except (TypeError, ValueError, NotImplementedError):  # a state that is no JSON, or none after all
        return False


def _read(rows: Any) -> list[Any]:
    with whole_stream():
        return list(islice(rows, _FEW))
