"""The order of rows that are best read one after the other: shards in a keyed order, rows shuffled in windows.

An epoch's sequence is its shards, in a keyed order, each from its first row to its last. It is cut into windows of
`buffer` rows, and each window is shuffled, so that what is read for a step lies close together. Where the windows begin
is shifted by a keyed amount, so that their borders are elsewhere in each epoch. All of it is a function of the step.
"""

from collections.abc import Sequence

import numpy as np

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.order import Order, Rearranged, Sequential, Shuffled
from samestep.data.permutation import permute

_SHARDS = noise.purpose("order/shards")
_WINDOW = noise.purpose("order/window")
_BORDER = noise.purpose("order/window border")

Window = tuple[int, int]
"""The first place of a window in the sequence of its epoch, and the one behind its last."""


class WindowedOrder(Shuffled):
    """Every row once per epoch; `sizes` are the rows of each shard."""

    def __init__(self, sizes: Sequence[int] | np.ndarray, batch: int, seed: int, buffer: int) -> None:
        if buffer < 1:
            raise UserError(f"a stream is shuffled in windows of at least 1 row (buffer=1: not at all), not {buffer}")
        self._sizes = np.asarray(sizes, dtype=np.int64)
        super().__init__(int(self._sizes.sum()), batch, seed)
        self.buffer = min(buffer, self.size)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._shards: tuple[int, np.ndarray] | None = None

    def windows(self, step: int) -> list[Window]:
        """The windows of the step's epoch that its rows are in, in ascending order."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        shift = self._shift(epoch)
        numbers = self._numbers(np.array([inside * self.batch, min((inside + 1) * self.batch, self.size) - 1]), shift)
        return [self._window(number, shift) for number in range(numbers[0], numbers[1] + 1)]

    def _places(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        return self._in_shards(epoch, self._in_windows(epoch, positions))

    def _in_windows(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """The places in the epoch's sequence of rows at these positions, which follow each other."""
        shift = self._shift(epoch)
        numbers = self._numbers(positions, shift)
        places = np.empty_like(positions)
        full = np.ones(len(positions), dtype=bool)
        for number in {int(numbers[0]), int(numbers[-1])}:  # the epoch's first and last window may be smaller
            start, stop = self._window(number, shift)
            if stop - start < self.buffer:
                mine = numbers == number
                full &= ~mine
                places[mine] = start + permute(positions[mine] - start, number, stop - start, self.seed, _WINDOW, epoch)
        if full.any():
            starts = shift + (numbers[full] - 1) * self.buffer
            inside = permute(positions[full] - starts, numbers[full], self.buffer, self.seed, _WINDOW, epoch)
            places[full] = starts + inside
        return places

    def _in_shards(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The rows at these places of the epoch's sequence."""
        if len(self._sizes) == 1:
            return places
        if self._shards is None or self._shards[0] != epoch:
            self._shards = epoch, permute(np.arange(len(self._sizes)), epoch, len(self._sizes), self.seed, _SHARDS)
        shards = self._shards[1]
        ends = np.cumsum(self._sizes[shards])
        which = np.searchsorted(ends, places, side="right")
        return self._starts[shards[which]] + places - (ends - self._sizes[shards])[which]

    def _shift(self, epoch: int) -> int:
        """Where the second window of an epoch begins; the first has no rows where this is 0."""
        if self.buffer == self.size:
            return 0
        return int(noise.scale(noise.words(self.seed, _BORDER, epoch), self.buffer))

    def _numbers(self, positions: np.ndarray, shift: int) -> np.ndarray:
        return (positions - shift) // self.buffer + 1

    def _window(self, number: int, shift: int) -> Window:
        stop = shift + int(number) * self.buffer
        return max(0, stop - self.buffer), min(stop, self.size)


def windows_of(order: Order, step: int) -> list[Window]:
    """The windows that a stream is read in for a step of any order that a stream can have."""
    while isinstance(order, Rearranged):
        order = order.order
    if isinstance(order, WindowedOrder):
        return order.windows(step)
    assert isinstance(order, Sequential), f"a stream cannot be read in the order {type(order).__name__}"
    start = step % order.steps_per_epoch * order.batch
    return [(start, min(start + order.batch, order.size))]
