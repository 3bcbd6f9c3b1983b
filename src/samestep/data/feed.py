"""A feed gives this rank its share of a step: the same number of micro-batches on every rank, weights counted ahead.

The step number is the whole data position: `feed[step]` needs no state, so a resumed run seeks by asking for its step.
While a step computes, others are loaded (here, or ahead of time by `workers` processes) and the next one is copied to
the device on a stream of its own. Weights are summed over the ranks by an asynchronous all-gather; a few steps share
one message (see world/async_gather.py).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from samestep.core.arguments import check_function, described
from samestep.core.errors import UserError
from samestep.data.collate import Collate
from samestep.data.loading import Batch, Rows, RowWeights, Share, Steps, loader, read_in_worker
from samestep.data.longest_row import LongestRow
from samestep.data.order import VALIDATION_EPOCH, Order, Reordered, Sequential, share_bounds
from samestep.world.async_gather import PendingResult
from samestep.world.world import World

STEPS_PER_MESSAGE = 8
"""Steps whose weights share one message, hence steps that are loaded ahead."""
FAST_LOAD = 0.001
"""Seconds per loaded step, on average. Steps that load faster are loaded all at once for a message: a training step
evicts what loading needs from the processor's caches, and refilling them takes longer than loading. Slower loads are
spread evenly over the steps."""


@dataclass
class MicroBatches:
    """This rank's micro-batches of one step, and the weights of the global batch."""

    step: int
    """The step of the feed that they belong to."""
    batches: list[Batch]
    """What a loss gets, one after the other: equally many on every rank."""
    weights: dict[str, float]
    """Per term, the sum over all rows of the global batch; "rows" is always there."""
    ids: np.ndarray
    """The global batch, one (epoch, index) per row."""
    spans: list[tuple[int, int]]
    """Which rows of the global batch each micro-batch holds; an empty one is a filler row of weight zero."""
    terms: set[str] = field(default_factory=set)
    """The terms that losses have returned so far for rows of this feed."""
    bounds: Sequence[int] = ()
    """Where the share of each data-parallel rank begins in the global batch, and where the last one ends."""
    count: RowWeights | None = None
    """What the weights were counted by."""
    is_produced: bool = False
    """Whether the rows were computed inside the step (see rollout.py), and not read."""

    def weight(self, term: str) -> float:
        """The global weight of a term: as counted, or the number of rows if it is not counted."""
        return self.weights.get(term, self.weights["rows"])

    def is_filler(self, number: int) -> bool:
        """Whether a micro-batch holds only a filler row."""
        start, stop = self.spans[number]
        return start == stop

    def first(self) -> "MicroBatches":
        return replace(self, batches=self.batches[:1], spans=self.spans[:1])

    def changed(self, change: Callable[[Batch], Batch]) -> "MicroBatches":
        """The same rows with other contents."""
        return replace(self, batches=[change(batch) for batch in self.batches])

    def all_filler(self) -> "MicroBatches":
        """The same micro-batches, all with weight zero."""
        return replace(self, spans=[(start, start) for start, _ in self.spans])


def for_update(micro_batches: MicroBatches) -> MicroBatches:
    """The same, with batches that are plain dicts and nothing more; refuses what is not a step of a feed."""
    if not isinstance(micro_batches, MicroBatches):
        raise UserError(
            f"an update takes the micro-batches of a step, but was given {described(micro_batches)}; give it "
            "feed[tick.step], where feed = bench.feed(rows)"
        )
    return replace(micro_batches, batches=[dict(batch) for batch in micro_batches.batches])


@dataclass
class CountedTerms:
    """Which weights were counted, and which terms losses have returned for the same rows."""

    unit: str = "rows"
    """May be counted although it is not a term of a loss."""
    names: set[str] = field(default_factory=set)
    terms: set[str] = field(default_factory=set)

    def check(self, only_if_missed: bool = False) -> None:
        """Refuse a count without a term of that name, once all losses of these rows have returned their terms: the
        term it is meant for would be weighed by rows instead. `only_if_missed`: only if a term has no count."""
        stray = sorted(self.names - self.terms - {self.unit, "rows"})
        if stray and self.terms and not (only_if_missed and self.terms <= self.names):
            raise UserError(
                f"count gives {stray[0]!r} a weight, but the loss has no such term (it has "
                f"{', '.join(map(repr, sorted(self.terms)))}); name a term, or the stage's unit"
            )


class Feed:
    """`feed[step]` is this rank's share of that step, on its device."""

    def __init__(
        self,
        rows: Rows,
        order: Order,
        world: World,
        *,
        micro_rows: int,
        length: int,
        count: RowWeights | None = None,
        collate: Collate | None = None,
        workers: int = 0,
        prefetch: int = 2,
        unit: str = "rows",
        row_seed: int | None = None,
        track: Callable[[Iterable["MicroBatches"], int], Iterable["MicroBatches"]] | None = None,
    ) -> None:
        """`length` is the number of planned steps; `track` wraps a pass over all of them (a progress bar). `unit` may
        be counted although it is not a term of a loss. With a `row_seed` the global generators are seeded for each
        row."""
        if count is not None:
            check_function("the count of a feed", count, ["batch"])
        self.order, self.length = order, length
        self._counted = CountedTerms(unit)
        self.seconds = 0.0
        """Total time spent in `feed[step]`; a pass over all steps is not counted."""
        self._world, self._count = world, count
        self._steps = Steps(rows, order, world, micro_rows, count, collate, row_seed)
        self._steps.moved = world.activity.made_progress
        self.place = self._steps.place
        """How far it is in its stream, if its rows come from one that can only be read in order."""
        self._open_loader = partial(loader, self._steps, length, workers, prefetch, world.device.type == "cuda")
        self._load = self._open_loader()
        self._stream = torch.cuda.Stream() if world.device.type == "cuda" else None
        self._track = track or (lambda steps, length: steps)
        self.is_tracked = track is not None
        """Whether passes over all steps are shown, as those of a validation are."""
        self._max_group = STEPS_PER_MESSAGE if count and world.control is not None else 1
        self._load_evenly = self._has_workers = workers > 0  # workers may not be that far ahead
        overlaps = self._has_workers or world.device.type != "cpu" or (count is not None and world.control is not None)
        self._ahead = int(overlaps)  # else nothing is done meanwhile, and two steps take more memory than one
        self._seconds_per_load = 0.0
        self._is_read = False
        self.is_cut = False
        """Whether a pass has only the first step now (see `cut`)."""
        self.watch: Callable[[MicroBatches], MicroBatches] | None = None
        """Changes what `feed[step]` gives, in the first step of a launch."""
        self._seek(0)

    @contextmanager
    def cut(self, *, filler: bool = False) -> Iterator[None]:
        """A pass has only the first step, which is loaded apart from all others; with `filler`, also a micro-batch
        whose row counts for nothing."""
        before = self._load, self.length, self._track
        self._load, self.length, self._track = partial(self._load_apart, filler), 1, lambda steps, length: steps
        self.is_cut = True
        self._seek(0)
        try:
            yield
        finally:
            self._load, self.length, self._track = before
            self.is_cut = False
            self._seek(0)

    @contextmanager
    def one_row(self) -> Iterator[None]:
        """Every step is the longest row that is found, once for each rank, or as many copies as are kept together."""
        before = self._load, self.length, self._track, self.seconds, self._seconds_per_load, self._is_read
        place = self.place.now if self.place is not None else None
        row = LongestRow(self._steps, self._world, self.length, self._has_workers)
        self._load, self.length, self._track = row.share, 1, lambda steps, length: steps
        self._seek(0)
        try:
            yield
        finally:
            self._load, self.length, self._track, self.seconds, self._seconds_per_load, self._is_read = before
            if self.place is not None:
                self.place.now = place
            self._seek(0)

    def cut_into(self, rows: int) -> None:
        """From now on a micro-batch has at most so many rows."""
        self._steps.micro_rows = rows
        if isinstance(self.order, Reordered):
            self.order = self._steps.order = replace(self.order, micro_rows=rows)
        self._load = self._open_loader()  # processes that load ahead would go on as before
        self._seek(0)

    def keep_together(self, rows: int) -> None:
        """From now on cut a global batch only between groups of so many consecutive rows; before its first step."""
        if rows != self._steps.together and self._is_read:
            raise UserError(f"feed.keep_together({rows}) comes after the first step of the feed; call it before")
        self._steps.together = rows
        if isinstance(self.order, Reordered):
            self.order = self._steps.order = replace(self.order, together=rows)

    def first_rows(self, count: int) -> Batch:
        """The first rows of the data, at most so many, as one batch that is the same on every rank: to show what a
        network makes of them."""
        steps = self._steps.of_first_rows()
        steps.order = Sequential(steps.order.size, count, epoch=VALIDATION_EPOCH)
        steps.rank, steps.size, steps.micro_rows, steps.together, steps.count = 0, 1, count, 1, None
        share = read_in_worker(steps, 0) if self._has_workers else steps[0]
        return {name: value.to(self._world.device) for name, value in share.batches[0].items()}

    def _load_apart(self, filler: bool, step: int) -> Share:
        """In a process of its own where rows are read by workers: what they open must not be open here."""
        share = read_in_worker(self._steps, step) if self._has_workers else self._steps[step]
        return share.with_filler() if filler else share

    def __getitem__(self, step: int) -> MicroBatches:
        began = time.perf_counter()
        micros = self._timed_as_data(step)
        self.seconds += time.perf_counter() - began
        return self.watch(micros) if self.watch else micros

    def _timed_as_data(self, step: int) -> MicroBatches:
        with self._world.activity.doing("data"):
            return self._get(step)

    def check_counted(self, only_if_missed: bool = False) -> None:
        """Refuse a count without a term of that name (see `CountedTerms`)."""
        self._counted.check(only_if_missed)

    def _get(self, step: int) -> MicroBatches:
        self._is_read = True
        if not self._pending or self._pending[0].step != step:
            self._seek(step)
        last = max(step, self.length - 1)
        while self._summed <= min(step + self._ahead, last):
            self._sum_weights(last)
        is_slow = self._load_evenly or self._seconds_per_load > FAST_LOAD
        if self._ahead and is_slow and self._next <= min(step + self._max_group, last):
            self._load_next()
        now = self._pending.popleft()
        now.send(self._world.device, self._stream)
        if self.place is not None:
            self.place.now = now.share.position
        if self._pending:
            self._pending[0].send(self._world.device, self._stream)
        return now.wait(self._world.dp_size, self._steps.together, self._counted.terms, self._count)

    def __iter__(self) -> Iterator[MicroBatches]:
        return iter(self._track((self._timed_as_data(step) for step in range(self.length)), self.length))

    def _seek(self, step: int) -> None:
        self._pending: deque[_PendingStep] = deque()
        self._next = self._summed = step  # the first step that is not loaded; the first whose weights are not sent
        self._group = 1  # the first step should not wait until many are loaded

    def _load_next(self) -> None:
        """Load one more step."""
        began = time.perf_counter()
        self._pending.append(_PendingStep(self._next, self._load(self._next)))
        self._seconds_per_load += (time.perf_counter() - began - self._seconds_per_load) / STEPS_PER_MESSAGE
        self._next += 1

    def _sum_weights(self, last: int) -> None:
        """Start to sum the next steps' weights over the ranks: always at the same steps, however they are loaded."""
        start, self._summed = self._summed, min(self._summed + self._group, last + 1)
        self._group = min(2 * self._group, self._max_group)
        while self._next < self._summed:
            self._load_next()
        counted = [pending for pending in self._pending if pending.step >= start and pending.share.weights]
        for pending in counted:
            self._counted.names.update(pending.share.weights)
            weights = pending.share.weights.values()  # if several ranks have one share, one of them counts it
            pending.weights = self._world.async_gather.submit([w if self._world.dp_counted else 0.0 for w in weights])
        if counted:
            self._world.async_gather.flush()


@dataclass
class _PendingStep:
    """A loaded step whose copy to the device and sum of weights are in progress."""

    step: int
    share: Share
    batches: list[Batch] = field(default_factory=list)
    stream: Any = None
    weights: PendingResult | None = None

    def send(self, device: torch.device, stream: Any) -> None:
        """Start the copy to the device, unless it has started."""
        if self.batches:
            return
        self.stream = stream
        with torch.cuda.stream(stream) if stream else nullcontext():
            self.batches = [
                {k: v.to(device, non_blocking=True) for k, v in batch.items()} for batch in self.share.batches
            ]

    def wait(self, shares: int, together: int, terms: set[str], count: RowWeights | None) -> MicroBatches:
        """The step, ready for use; `terms` collects the terms that losses return for its rows."""
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for batch in self.batches:
                for tensor in batch.values():
                    tensor.record_stream(current)
        weights = dict(zip(self.share.weights, self.weights.sums() if self.weights else ()))
        weights["rows"] = float(len(self.share.ids))  # known without a message
        ids, spans = self.share.ids, self.share.spans
        bounds = share_bounds(len(ids), shares, together)
        return MicroBatches(self.step, self.batches, weights, ids, spans, terms, bounds, count)
