"""Finds the rows of a step in a stream that can only be read in order.

The order shuffles a stream in windows. A process reads each window as it comes to it, and keeps of it what its steps
still need. Where it began to read the window is in the checkpoint: by the source's own state if it has one, else by the
number of rows to read again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.data.order import VALIDATION_EPOCH, Order
from samestep.data.row_digest import RowDigest, digest_of
from samestep.data.streams.source import Passes, Position, Source
from samestep.data.windowed import Window, windows_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _HeldWindow:
    """What is kept of a window."""

    begins: Position
    rows: dict[int, Any]
    """By their number in the epoch."""


class StreamReader:
    """The rows of one feed in this process."""

    def __init__(
        self, source: Source, order: Order, share: Callable[[int], np.ndarray], moved: Callable[[], None]
    ) -> None:
        """`share` gives the rows of a step that this rank reads, by their numbers in the epoch; `moved` is called while
        rows are read again to find a place."""
        self._order, self._share, self._moved = order, share, moved
        self._passes = Passes(source, moved)
        self._held: dict[tuple[int, Window], _HeldWindow] = {}
        self._is_known_checked = False

    def read(self, step: int, epoch: int, known: Position | None) -> tuple[dict[int, Any], Position]:
        """The rows of this rank's share by their numbers, and the position of the first window that has rows of the
        step's global batch. `known` is a position that a checkpoint had."""
        turn = 0 if epoch == VALIDATION_EPOCH else epoch
        keys = [(turn, window) for window in windows_of(self._order, step)]
        self._held = {key: held for key, held in self._held.items() if key in keys}
        wanted, found = self._share(step).tolist(), dict[int, Any]()
        for key in keys:
            _, (start, stop) = key
            mine = [index for index in wanted if start <= index < stop]
            if key not in self._held or any(index not in self._held[key].rows for index in mine):
                self._held[key] = self._read_window(*key, step, known)
            found.update((index, self._held[key].rows[index]) for index in mine)
        return found, self._held[keys[0]].begins

    def _read_window(self, turn: int, window: Window, step: int, known: Position | None) -> _HeldWindow:
        start, stop = window
        begin = turn * self._order.size + start
        begins, row = self._begin(begin, known)
        wanted, rows = self._wanted(turn, window, step), dict[int, Any]()
        for index in range(start, stop):
            row = row if index == start else next(self._passes)
            if index in wanted:
                rows[index] = row
        return _HeldWindow(begins, rows)

    def _begin(self, at: int, known: Position | None) -> tuple[Position, Any]:
        """The position of a place, and the row there. The first time it is seen whether the way there is still what it
        was when the checkpoint was made."""
        if known is not None and known.at <= at and not self._is_known_checked:
            self._is_known_checked = True
            found, row = self._row_at(known.at, [known])
            if not _same_row(known, found):
                found, row = self._row_again(known)
            if found.at == at:
                return found, row
        ways = [held.begins for held in self._held.values()]
        return self._row_at(at, ways if known is None else [*ways, known])

    def _row_at(self, at: int, ways: list[Position]) -> tuple[Position, Any]:
        """The position of a place with the digest of the row there, and this row."""
        self._passes.seek(at, ways)
        position, row = self._passes.position(), next(self._passes)
        return replace(position, first=digest_of([row]).to_json()), row

    def _row_again(self, known: Position) -> tuple[Position, Any]:
        """The same without the source's own state, which led to another row than when it was taken."""
        source = self._passes.source
        if known.state is not None and source.uses_state:
            logger.warning(
                "the state of the stream leads to another row than when it was taken, so %s rows are read again to "
                "find the place",
                f"{known.row:,}",
            )
            source.uses_state, self._passes = False, Passes(source, self._moved)
            found, row = self._row_at(known.at, [known])
            if _same_row(known, found):
                return found, row
        raise UserError(
            f"the stream has changed since the checkpoint was made: its row {known.row + 1:,} is another one; restore "
            "the data, or start a new run (init_from=... keeps the weights)"
        )

    def _wanted(self, turn: int, window: Window, step: int) -> set[int]:
        """The rows of a window that this process still needs, if it goes on with every step, or, as one of several
        loader processes, with every so manieth. Should it not, it will read the window again."""
        last = turn * self._order.steps_per_epoch + (window[1] - 1) // self._order.batch
        processes = get_worker_info()
        steps = range(step, max(step, last) + 1, processes.num_workers if processes else 1)
        return {index for each in steps for index in self._share(each).tolist()}


def _same_row(known: Position, found: Position) -> bool:
    return known.first is None or RowDigest(**known.first).same_as(RowDigest(**found.first))


class StreamPlace:
    """How far a feed has come in its stream: part of the checkpoint, the same on every rank."""

    def __init__(self) -> None:
        self.now: dict[str, Json] | None = None
        """Where a run that is resumed after this step would begin to read; None before the first step."""
        self.begin: Position | None = None
        """Where this launch begins, if it goes on with a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"position": self.now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin there."""
        self.now = state["position"]
        self.begin = Position(**self.now) if self.now is not None else None
        if self.begin is not None and self.begin.row and self.begin.state is None:
            logger.warning(
                "the stream has no index and no state of its own, so %s rows are read again to find the place",
                f"{self.begin.row:,}",
            )
