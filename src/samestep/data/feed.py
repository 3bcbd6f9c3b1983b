"""A feed gives this rank its share of a step: the same number of micro-batches on every rank, weights counted ahead.

The step number is the whole data position: `feed[step]` needs no state, so a resumed run seeks by asking for its step.
While a step computes, the next one is loaded (here, or ahead of time by `workers` processes), copied to the device on
a stream of its own, and its weights are summed over the ranks by a message that nobody waits for.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from samestep.core.errors import UserError
from samestep.core.parent import end_with
from samestep.data.order import Order, micros
from samestep.world.world import World

Batch = dict[str, Tensor]
Count = Callable[[Batch], Mapping[str, Tensor]]
"""Each term's weight per row ([rows]); a term that is not named weighs its rows."""


class Rows(Protocol):
    """Samples by index. A `rows(indices)` method that returns a whole batch is used where there is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass
class Micros:
    """This rank's micro-batches of one step, and what they weigh in the whole."""

    step: int
    batches: list[Batch]
    weights: dict[str, float]
    """Per term, the sum over all rows of the global batch; "rows" is always there."""
    ids: np.ndarray
    """The global batch, (epoch, index) a row."""
    spans: list[tuple[int, int]]
    """Which rows of the global batch each micro-batch holds; an empty one is a filler row of weight zero."""

    def weight(self, term: str) -> float:
        """The global weight of a term: as counted, or its rows where it was not."""
        return self.weights.get(term, self.weights["rows"])

    def first(self) -> "Micros":
        """The first micro-batch alone."""
        return replace(self, batches=self.batches[:1], spans=self.spans[:1])


@dataclass
class _Share:
    """This rank's part of a step as the loader made it."""

    batches: list[Batch]
    weights: dict[str, float]
    ids: np.ndarray
    spans: list[tuple[int, int]]

    def pin_memory(self) -> "_Share":
        """In page-locked memory, from where a copy to the device runs beside the computation."""
        self.batches = [{key: value.pin_memory() for key, value in batch.items()} for batch in self.batches]
        return self


class _Steps(Dataset):
    """A dataset whose items are steps, so that torch's own loader workers can prefetch them."""

    def __init__(self, rows: Rows, order: Order, world: World, micro_rows: int, count: Count | None) -> None:
        self.rows, self.order, self.micro_rows, self.count = rows, order, micro_rows, count
        self.rank, self.size = world.rank, world.size  # plain numbers: a worker process gets no group
        self.dtype = torch.get_default_dtype()

    def __getitem__(self, step: int) -> _Share:
        ids = self.order.ids(step)
        spans = micros(len(ids), self.rank, self.size, self.micro_rows)
        batches = [self._batch(ids[start:stop], ids) for start, stop in spans]
        weights: dict[str, float] = {}
        for batch, (start, stop) in zip(batches, spans):
            for term, weight in self._weights(batch, stop - start).items():
                weights[term] = weights.get(term, 0.0) + weight
        return _Share(batches, weights, ids, spans)

    def _weights(self, batch: Batch, rows: int) -> dict[str, float]:
        """What a batch weighs in each term; one of no rows is a filler, which weighs nothing."""
        weights = {"rows": float(rows)}
        for term, weight in (self.count(batch) if self.count else {}).items():
            assert weight.shape == batch["live"].shape, f"{term!r} is counted a row, not as {tuple(weight.shape)}"
            weights[term] = float(weight.sum(dtype=torch.float64)) if rows else 0.0
        return weights

    def _batch(self, mine: np.ndarray, all_ids: np.ndarray) -> Batch:
        ids = mine if len(mine) else all_ids[:1]  # a real row of weight zero still touches every parameter
        batch = {key: self._cast(value) for key, value in self._fetch(ids[:, 1]).items()}
        batch["ids"] = torch.from_numpy(np.ascontiguousarray(ids))
        batch["live"] = torch.full((len(ids),), len(mine) > 0)
        return batch

    def _fetch(self, indices: np.ndarray) -> Mapping[str, Tensor]:
        if hasattr(self.rows, "rows"):
            return self.rows.rows(indices)
        samples = [self.rows[int(i)] for i in indices]
        if not isinstance(samples[0], Mapping):
            raise UserError(f"a sample must be a dict of tensors, but the data gave a {type(samples[0]).__name__}")
        return default_collate(samples)

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value


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
        track: Callable[[Iterable["Micros"], int], Iterable["Micros"]] | None = None,
    ) -> None:
        """`length` bounds the steps; `track` may watch a pass over all of them (a progress bar)."""
        self.order, self.length = order, length
        self._world = world
        self._steps = _Steps(rows, order, world, micro_rows, count)
        self._loader = _loader(self._steps, length, workers, prefetch, pin=world.device.type == "cuda")
        self._stream = torch.cuda.Stream() if world.device.type == "cuda" else None
        self._track = track or (lambda steps, length: steps)
        self._ahead: _Coming | None = None

    def __getitem__(self, step: int) -> Micros:
        coming = self._ahead if self._ahead and self._ahead.step == step else self._begin(step)
        self._ahead = self._begin(step + 1) if step + 1 < self.length else None
        return coming.arrive()

    def __iter__(self) -> Iterator[Micros]:
        return iter(self._track((self[step] for step in range(self.length)), self.length))

    def _begin(self, step: int) -> "_Coming":
        share = self._loader(step)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            batches = [
                {k: v.to(self._world.device, non_blocking=True) for k, v in batch.items()} for batch in share.batches
            ]
        terms = sorted(share.weights)
        message = torch.from_numpy(np.array([share.weights[term] for term in terms], dtype=np.float64))
        group, work = self._world.control, None
        if group is not None and terms == ["rows"]:
            message.fill_(len(share.ids))  # how many rows there are is known without asking
        elif group is not None:
            work = dist.all_reduce(message, group=group, async_op=True)
        return _Coming(step, share, batches, terms, message, work, self._stream)


@dataclass
class _Coming:
    """A step under way: its copy to the device and the sum of its weights."""

    step: int
    share: _Share
    batches: list[Batch]
    terms: Sequence[str]
    message: Tensor
    work: Any
    stream: Any

    def arrive(self) -> Micros:
        if self.work is not None:
            self.work.wait()
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for batch in self.batches:
                for tensor in batch.values():
                    tensor.record_stream(current)
        weights = dict(zip(self.terms, self.message.tolist()))
        return Micros(self.step, self.batches, weights, self.share.ids, self.share.spans)


def _loader(steps: _Steps, length: int, workers: int, prefetch: int, pin: bool) -> Callable[[int], _Share]:
    return _Processes(steps, length, workers, prefetch, pin) if workers else _Inline(steps, pin)


class _Inline:
    """Loads in this process, a step ahead of the computation, which a GPU meanwhile goes on with. No thread: it would
    fight the training loop for the interpreter and cost more than it hides."""

    def __init__(self, steps: _Steps, pin: bool) -> None:
        self._steps, self._pin = steps, pin

    def __call__(self, step: int) -> _Share:
        share = self._steps[step]
        return share.pin_memory() if self._pin else share


class _Processes:
    """Loads the next steps in torch's loader workers; asked for another step than the next, it starts anew there."""

    def __init__(self, steps: _Steps, length: int, workers: int, prefetch: int, pin: bool) -> None:
        self._steps, self._length, self._pin = steps, length, pin
        self._workers, self._prefetch = workers, max(1, prefetch)
        self._next = -1
        self._iterator: Iterator[_Share | UserError] = iter(())

    def __call__(self, step: int) -> _Share:
        if step != self._next:
            self._iterator = iter(self._open(step))
        self._next = step + 1
        share = next(self._iterator)
        if isinstance(share, UserError):
            self._iterator = iter(())  # ends the processes now; the exception would keep them in a cycle
            raise share
        return share

    def _open(self, step: int) -> DataLoader:
        return DataLoader(
            _Excused(self._steps),
            batch_size=None,
            sampler=range(step, self._length),
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            pin_memory=self._pin,
            # A generator of its own: torch's would be drawn from now, and a resumed run opens at another moment.
            generator=torch.Generator().manual_seed(self._steps.rank),
            # Said outright: a process that came out of a fork server would start another one, seconds each time.
            multiprocessing_context="fork",
            worker_init_fn=partial(_follow, os.getpid()),
        )


def _follow(rank_process: int, worker: int) -> None:
    """A loading process ends when its rank does, and leaves requests to stop to it."""
    end_with(rank_process)


class _Excused(Dataset):
    """Brings a user's mistake out of a loader process as it is; torch would wrap the sentence into a traceback."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def __getitem__(self, step: int) -> _Share | UserError:
        try:
            return self._steps[step]
        except UserError as error:
            return error
