"""A feed gives this rank its share of a step: the same number of micro-batches on every rank, weights counted ahead.

The step number is the whole data position: `feed[step]` needs no state, so a resumed run seeks by asking for its step.
While a step computes, others are loaded (here, or ahead of time by `workers` processes) and the next one is copied to
the device on a stream of its own. Weights are summed over the ranks by a message that nobody waits for; a few steps
share one (see world/post.py).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from samestep.core.errors import UserError
from samestep.data.loading import Batch, Count, Rows, Share, Steps, loader
from samestep.data.order import Order
from samestep.world.async_gather import PendingResult
from samestep.world.world import World

TOGETHER = 8
"""Steps whose weights travel in one message, hence steps that are loaded ahead."""
QUICK = 0.001
"""Seconds to load a step, on average, under which those of a message are loaded in one go: a step drives what loading
needs out of the processor's caches, and to bring it back takes longer than loading. Slower ones are spread evenly."""


@dataclass
class MicroBatches:
    """This rank's micro-batches of one step, and what they weigh in the whole."""

    step: int
    batches: list[Batch]
    weights: dict[str, float]
    """Per term, the sum over all rows of the global batch; "rows" is always there."""
    ids: np.ndarray
    """The global batch, (epoch, index) a row."""
    spans: list[tuple[int, int]]
    """Which rows of the global batch each micro-batch holds; an empty one is a filler row of weight zero."""
    terms: set[str] = field(default_factory=set)
    """What losses have returned so far for rows of the feed that this came from."""

    def weight(self, term: str) -> float:
        """The global weight of a term: as counted, or its rows where it was not."""
        return self.weights.get(term, self.weights["rows"])

    def is_filler(self, number: int) -> bool:
        """Whether a micro-batch holds nothing that counts."""
        start, stop = self.spans[number]
        return start == stop

    def first(self) -> "MicroBatches":
        """The first micro-batch alone."""
        return replace(self, batches=self.batches[:1], spans=self.spans[:1])

    def all_filler(self) -> "MicroBatches":
        """The same micro-batches, none of which counts."""
        return replace(self, spans=[(start, start) for start, _ in self.spans])


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
        count: Count | None = None,
        workers: int = 0,
        prefetch: int = 2,
        unit: str = "rows",
        track: Callable[[Iterable["MicroBatches"], int], Iterable["MicroBatches"]] | None = None,
    ) -> None:
        """`length` is how many steps are planned; `track` may watch a pass over all of them (a progress bar). `unit`
        may be counted though it is no term of a loss."""
        self.order, self.length = order, length
        self._unit, self._terms, self._counted = unit, set[str](), set[str]()
        self.seconds = 0.0
        """What single steps took to get, together; a pass over all of them happens beside the steps."""
        self._world = world
        self._load = loader(
            Steps(rows, order, world, micro_rows, count), length, workers, prefetch, pin=world.device.type == "cuda"
        )
        self._stream = torch.cuda.Stream() if world.device.type == "cuda" else None
        self._track = track or (lambda steps, length: steps)
        self._most = TOGETHER if count and world.control is not None else 1
        self._spread = workers > 0  # they may not be that far ahead
        self._seconds_a_load = 0.0
        self._seek(0)

    def __getitem__(self, step: int) -> MicroBatches:
        began = time.perf_counter()
        micros = self._watched(step)
        self.seconds += time.perf_counter() - began
        return micros

    def _watched(self, step: int) -> MicroBatches:
        with self._world.activity.doing("data"):
            return self._take(step)

    def check_counted(self, only_if_missed: bool = False) -> None:
        """Refuse a count that belongs to no term, after all losses that use this feed have said which terms there are;
        its term would weigh rows instead. `only_if_missed`: and only if a term has no count."""
        stray = sorted(self._counted - self._terms - {self._unit, "rows"})
        if stray and self._terms and not (only_if_missed and self._terms <= self._counted):
            raise UserError(
                f"count gives {stray[0]!r} a weight, but the loss has no such term (it has "
                f"{', '.join(map(repr, sorted(self._terms)))}); name a term, or the stage's unit"
            )

    def _take(self, step: int) -> MicroBatches:
        if not self._coming or self._coming[0].step != step:
            self._seek(step)
        last = max(step, self.length - 1)
        while self._told <= min(step + 1, last):
            self._tell(last)
        if self._next <= min(step + self._most, last) and (self._spread or self._seconds_a_load > QUICK):
            self._prepare()
        now = self._coming.popleft()
        now.send(self._world.device, self._stream)
        if self._coming:
            self._coming[0].send(self._world.device, self._stream)
        return now.arrive(self._terms)

    def __iter__(self) -> Iterator[MicroBatches]:
        return iter(self._track((self._watched(step) for step in range(self.length)), self.length))

    def _seek(self, step: int) -> None:
        self._coming: deque[_Coming] = deque()
        self._next = self._told = step  # the first step that is not loaded, and whose weights are not under way
        self._group = 1  # the first step should not wait for the loading of many

    def _prepare(self) -> None:
        """Load one more step."""
        began = time.perf_counter()
        self._coming.append(_Coming(self._next, self._load(self._next)))
        self._seconds_a_load += (time.perf_counter() - began - self._seconds_a_load) / TOGETHER
        self._next += 1

    def _tell(self, last: int) -> None:
        """Begin the sum over ranks of what the next steps weigh: always at the same steps, however they are loaded."""
        start, self._told = self._told, min(self._told + self._group, last + 1)
        self._group = min(2 * self._group, self._most)
        while self._next < self._told:
            self._prepare()
        counted = [coming for coming in self._coming if coming.step >= start and coming.share.weights]
        for coming in counted:
            self._counted.update(coming.share.weights)
            weights = coming.share.weights.values()  # of several ranks with one share, one counts it
            coming.weights = self._world.async_gather.submit([w if self._world.dp_counted else 0.0 for w in weights])
        if counted:
            self._world.async_gather.flush()


@dataclass
class _Coming:
    """A step under way: its copy to the device and the sum of its weights."""

    step: int
    share: Share
    batches: list[Batch] = field(default_factory=list)
    stream: Any = None
    weights: PendingResult | None = None

    def send(self, device: torch.device, stream: Any) -> None:
        """Begin the copy to the device, unless it is under way."""
        if self.batches:
            return
        self.stream = stream
        with torch.cuda.stream(stream) if stream else nullcontext():
            self.batches = [
                {k: v.to(device, non_blocking=True) for k, v in batch.items()} for batch in self.share.batches
            ]

    def arrive(self, terms: set[str]) -> MicroBatches:
        """The step, ready to be used; `terms` collects what losses return for its rows."""
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for batch in self.batches:
                for tensor in batch.values():
                    tensor.record_stream(current)
        weights = dict(zip(self.share.weights, self.weights.sums() if self.weights else ()))
        weights["rows"] = float(len(self.share.ids))  # known without asking
        return MicroBatches(self.step, self.batches, weights, self.share.ids, self.share.spans, terms)
