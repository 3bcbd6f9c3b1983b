"""Which samples a step trains on, as a function of the step number.

`order.ids(step)` is the global batch of a step: int64 [n, 2], columns (epoch, index), the same on every rank. Any step
can be computed at any time at the same cost, so the step number is the whole data position: nothing else is saved,
and a resume at another number of ranks continues with the very next sample. `split` and `micro_batches` then divide
it among the ranks.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.permutation import permute

VALIDATION_EPOCH = 2**31 - 1
"""The epoch of validation samples: noise keyed by it is fixed, and is never training's."""

BLOCK = 1024
"""Slots of a block of `MixedOrder`: proportions are whole numbers of these."""

_AT_ONCE = 4096
"""Samples of `Shuffled` computed together: these take three times as long as one small batch alone."""

_SHUFFLE = noise.purpose("order/shuffle")
_BATCHES = noise.purpose("order/batches")
_SHORT = noise.purpose("order/short batch")
_SLOTS = noise.purpose("order/slots")
_SOURCE = noise.purpose("order/source")
_SHIFT = noise.purpose("order/shift")

_POINT = 1 << 20
"""The resolution of `WeightedOrder`: a mean weight is this many units long."""


class Order(Protocol):
    """The order of a run's samples, independent of ranks: every step's global batch, in O(1)."""

    @property
    def size(self) -> int:
        """Samples in an epoch."""

    @property
    def batch(self) -> int:
        """Samples in a global batch; an epoch's last batch may be smaller."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, ceil(size / batch)."""

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch, int64 [n, 2]."""


@dataclass(frozen=True)
class Sequential:
    """Samples 0, 1, 2, ... in order, for validation and dumps; `epoch`, if given, is the epoch of all of them."""

    size: int
    batch: int
    epoch: int | None = None

    def __post_init__(self) -> None:
        _check(self.size, self.batch)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch; the last may be smaller."""
        return -(-self.size // self.batch)

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch."""
        epoch, positions = _positions(self, step)
        return _pairs(epoch if self.epoch is None else self.epoch, positions)


class Shuffled:
    """Every sample once per epoch, each epoch in a keyed order of its own.

    Many batches are computed at once, for neighbouring steps to share. The last ones are cached, which saves time and
    changes no result.
    """

    def __init__(self, size: int, batch: int, seed: int) -> None:
        _check(size, batch)
        self.size, self.batch, self.seed = size, batch, seed
        self._chunk = max(1, _AT_ONCE // batch)
        self._last: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch; the last may be smaller."""
        return -(-self.size // self.batch)

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch."""
        assert step >= 0, f"steps count from 0, not {step}"
        epoch, inside = divmod(step, self.steps_per_epoch)
        number, place = divmod(inside, self._chunk)
        remembered = self._last
        if remembered is None or remembered[0] != (epoch, number):
            start = number * self._chunk * self.batch
            positions = np.arange(start, min(start + self._chunk * self.batch, self.size))
            remembered = self._last = (epoch, number), self._samples(epoch, self._places(epoch, positions))
        return remembered[1][place * self.batch : (place + 1) * self.batch].copy()

    def _places(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Where these neighbouring positions of the epoch are in the keyed order."""
        return permute(positions, epoch, self.size, self.seed, _SHUFFLE)

    def _samples(self, epoch: int, shuffled: np.ndarray) -> np.ndarray:
        """The (epoch, index) pairs at these places."""
        return _pairs(epoch, shuffled)


class WeightedOrder(Shuffled):
    """Samples in proportion to their weights. An epoch has as many draws as there are samples.

    The weights, laid end to end, are cut at as many equally spaced points as there are samples, shifted by a keyed
    amount in each epoch; each point is a draw of the sample that it falls on, and draws are shuffled. So in every epoch
    a sample is drawn as often as its weight says, rounded up or down at random, and with equal weights just once.

    The first column counts a sample's draws apart, so noise keyed by a pair differs between them: it is the epoch times
    the most draws that any sample can have in one, plus the number of the draw.
    """

    def __init__(self, weights: Sequence[float] | np.ndarray, batch: int, seed: int) -> None:
        widths = _weights(weights)
        super().__init__(len(widths), batch, seed)
        ends = np.cumsum(widths)
        # Whole numbers, so that no rounding decides: the distance of two points is `_POINT`.
        self._ends = np.rint(ends * (len(widths) / ends[-1] * _POINT)).astype(np.int64)
        self._ends[ends == ends[-1]] = len(widths) * _POINT
        self._starts = np.concatenate([[0], self._ends[:-1]])
        self._most = -(-int((self._ends - self._starts).max()) // _POINT)

    def _samples(self, epoch: int, shuffled: np.ndarray) -> np.ndarray:
        shift = noise.scale(noise.words(self.seed, _SHIFT, epoch), _POINT)
        indices = np.searchsorted(self._ends, shuffled * _POINT + shift, side="right")
        first = -((shift - self._starts[indices]) // _POINT)  # the first point at or after the sample's start
        return _pairs(epoch * self._most + shuffled - first, indices)


class Rearranged:
    """An order with the numbers of another one, whose samples it puts elsewhere."""

    order: Order

    @property
    def size(self) -> int:
        """Samples in an epoch."""
        return self.order.size

    @property
    def batch(self) -> int:
        """Samples in a global batch."""
        return self.order.batch

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch


class BucketedOrder(Rearranged):
    """Another order, but a batch's samples have about the same length, so that little is padded.

    Each epoch of the other order is cut into chunks of `chunk` batches; a chunk is sorted by length, cut into batches,
    and the batches are shuffled. The epoch's smaller batch stays last. Inside a batch the samples are sorted too, so
    those of a micro-batch are closer still. Only `lengths` is kept in memory.
    """

    def __init__(self, order: Order, lengths: Sequence[int] | np.ndarray, seed: int, chunk: int = 64) -> None:
        if chunk < 1:
            raise UserError(f"a bucketed order needs chunks of at least 1 batch, not {chunk}")
        self.lengths = _lengths(lengths)
        if len(self.lengths) != order.size:
            raise UserError(f"a bucketed order needs one length per sample, not {len(self.lengths)} for {order.size}")
        self.order, self.seed, self.chunk = order, seed, chunk
        self._last: tuple[tuple[int, int], list[np.ndarray]] | None = None

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        number, place = divmod(inside, self.chunk)
        remembered = self._last
        if remembered is None or remembered[0] != (epoch, number):
            first = step - place
            steps = range(first, min(first + self.chunk, (epoch + 1) * self.steps_per_epoch))
            pairs = np.concatenate([self.order.ids(each) for each in steps])
            remembered = self._last = (epoch, number), self._batches(epoch, number, pairs)
        return remembered[1][place].copy()

    def _batches(self, epoch: int, number: int, pairs: np.ndarray) -> list[np.ndarray]:
        """The batches of a chunk in training order."""
        pairs = pairs[np.argsort(self.lengths[pairs[:, 1]], kind="stable")]
        full, over = divmod(len(pairs), self.batch)
        last = []
        if over:
            # The smaller batch is cut at a keyed position: at the end it would always hold the longest samples.
            cut = self.batch * noise.scale(noise.words(self.seed, _SHORT, epoch), full + 1)
            last = [pairs[cut : cut + over]]
            pairs = np.delete(pairs, np.s_[cut : cut + over], axis=0)
        if not full:
            return last
        shuffled = permute(np.arange(full), number, full, self.seed, _BATCHES, epoch)
        return [*pairs.reshape(full, self.batch, 2)[shuffled], *last]


class MixedOrder:
    """Several sources in fixed proportion, each running through epochs of its own, each epoch in a keyed order.

    Slots come in blocks of 1024 in which every source has a fixed number of slots, in a keyed order per block; so how
    often a source was drawn before any slot is known without counting from the start. An index is the source's offset
    (the sizes before it) plus the index inside; the epoch is the source's own.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], batch: int, seed: int) -> None:
        if len(sizes) != len(weights) or not sizes:
            raise UserError(f"a mixture needs one weight per source, not {len(weights)} for {len(sizes)}")
        for size in sizes:
            _check(size, batch)
        self.sizes, self.batch, self.seed = tuple(sizes), batch, seed
        self.size = sum(sizes)
        self.counts = np.array(_slots(weights), dtype=np.int64)
        self._ends = np.cumsum(self.counts)
        self._offsets = np.cumsum([0, *sizes[:-1]])

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a nominal epoch: as many samples as all sources hold together."""
        return -(-self.size // self.batch)

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch, always full: the sources have no common end."""
        assert step >= 0, f"steps count from 0, not {step}"
        start, stop = step * self.batch, (step + 1) * self.batch
        first, end = start // BLOCK, -(-stop // BLOCK)
        blocks = np.repeat(np.arange(first, end), BLOCK)
        places = np.tile(np.arange(BLOCK), end - first)
        sources = np.searchsorted(self._ends, permute(places, blocks, BLOCK, self.seed, _SLOTS), side="right")
        earlier, current = np.split(sources[: stop - first * BLOCK], [start - first * BLOCK])
        pairs = np.empty((self.batch, 2), dtype=np.int64)
        for source in np.unique(current):
            mine = np.flatnonzero(current == source)
            drawn = first * self.counts[source] + np.count_nonzero(earlier == source)
            pairs[mine] = self._draws(int(source), int(drawn), len(mine))
        return pairs

    def _draws(self, source: int, start: int, count: int) -> np.ndarray:
        size = self.sizes[source]
        epochs, positions = np.divmod(np.arange(start, start + count), size)
        return _pairs(epochs, self._offsets[source] + permute(positions, epochs, size, self.seed, _SOURCE, source))


def split(ids: np.ndarray, rank: int, size: int) -> np.ndarray:
    """A rank's contiguous share of a global batch; shares differ by at most one sample and none is dropped."""
    start, stop = _share(len(ids), rank, size)
    return ids[start:stop]


def micro_batches(n_global: int, rank: int, size: int, rows: int, together: int = 1) -> list[tuple[int, int]]:
    """A rank's micro-batches as (start, stop) slices of the global batch, each of at most `rows` samples.

    Every rank has the same number of them, because collectives inside a forward pass need that; some may be empty.
    Each `together` samples that follow each other in the global batch are in one micro-batch.
    """
    if rows < 1:
        raise UserError(f"a micro-batch must have at least 1 row, not {rows}")
    if rows < together:
        raise UserError(
            f"a micro-batch of at most {rows} rows cannot hold the {together} rows that belong together; set "
            f"batch_size to at least {together}, or make the groups smaller"
        )
    groups = -(-n_global // together)
    start, stop = _share(groups, rank, size)
    largest = -(-groups // size)
    pieces = max(1, -(-largest // (rows // together)))
    bounds = [start + (stop - start) * j // pieces for j in range(pieces + 1)]
    return list(pairwise(min(bound * together, n_global) for bound in bounds))


def share_bounds(n_global: int, size: int, together: int = 1) -> list[int]:
    """Where each rank's share of a global batch begins, and where the last one ends."""
    groups = -(-n_global // together)
    return [min(_share(groups, rank, size)[0] * together, n_global) for rank in range(size)] + [n_global]


def _share(n: int, rank: int, size: int) -> tuple[int, int]:
    assert 0 <= rank < size, f"rank {rank} of {size}"
    return n * rank // size, n * (rank + 1) // size


def _check(size: int, batch: int) -> None:
    if size < 1:
        raise UserError(f"a dataset must have at least 1 sample, not {size}: check its path and filters")
    if batch < 1:
        raise UserError(f"batch size must be at least 1, not {batch}")


def _positions(order: Order, step: int) -> tuple[int, np.ndarray]:
    """The epoch of a step, and its positions in the epoch."""
    assert step >= 0, f"steps count from 0, not {step}"
    epoch, inside = divmod(step, order.steps_per_epoch)
    start = inside * order.batch
    return epoch, np.arange(start, min(start + order.batch, order.size))


def _pairs(epochs: int | np.ndarray, indices: np.ndarray) -> np.ndarray:
    pairs = np.empty((len(indices), 2), dtype=np.int64)
    pairs[:, 0], pairs[:, 1] = epochs, indices
    return pairs


def _lengths(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= 2**31)):
        raise UserError("lengths must be a flat list of whole numbers from 0 to 2147483647, one per sample")
    return array.astype(np.int32, copy=False)


def _weights(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any() or (len(array) and not array.any()):
        raise UserError("weights must be a flat list of numbers of at least 0, one per sample and not all of them 0")
    if not len(array):
        _check(0, 1)
    return array


def _slots(weights: Sequence[float]) -> list[int]:
    """Each source's slots in a block, by largest remainder; a weight too small for one slot is refused."""
    if not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
        raise UserError(f"mixture weights must be numbers of at least 0, not all of them 0; got {list(weights)}")
    total = math.fsum(weights)
    quotas = [w / total * BLOCK for w in weights]
    slots = [math.floor(q) for q in quotas]
    by_remainder = sorted(range(len(slots)), key=lambda i: slots[i] - quotas[i])
    for i in by_remainder[: BLOCK - sum(slots)]:
        slots[i] += 1
    assert sum(slots) == BLOCK, slots
    for i, weight in enumerate(weights):
        if weight > 0 and slots[i] == 0:
            share = f"{weight / total:.1e} of the mixture, less than one slot in {BLOCK}"
            raise UserError(f"source {i} is given {share}: raise its weight or set it to 0")
    return slots


@dataclass(frozen=True)
class Reordered(Rearranged):
    """Another order of the rows inside each step of `order`, while `active()` is true; the steps stay the same.

    Every micro-batch keeps its rows, so nothing changes but the order in which numbers are added up: its rows are
    reversed, and a rank's micro-batches of equal size change places. Where rows belong `together`, that is so of these
    groups in place of micro-batches.
    """

    order: Order
    ranks: int
    micro_rows: int
    active: Callable[[], bool]
    together: int = 1

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch."""
        ids = self.order.ids(step)
        if not self.active():
            return ids
        most = self.together if self.together > 1 else self.micro_rows
        spans = [micro_batches(len(ids), rank, self.ranks, most, self.together) for rank in range(self.ranks)]
        return ids[np.concatenate([_places(mine) for mine in spans])]


def _places(spans: list[tuple[int, int]]) -> np.ndarray:
    """Which row comes where: the last micro-batch of a size takes the place of the first one, and so on, reversed."""
    by_size = defaultdict(list)
    for start, stop in spans:
        by_size[stop - start].append(np.arange(stop - 1, start - 1, -1))
    return np.concatenate([by_size[stop - start].pop() for start, stop in spans])
