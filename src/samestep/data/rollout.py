"""Rows that are made inside a step: sampled continuations of prompts, their rewards, parts of them for inner epochs.

Everything here is the same at any number of ranks: rows keep their place in the global batch, and their ids. All ranks
call these functions alike, since weights and moments are summed over them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.collate import RESERVED, check_batch
from samestep.data.feed import CountedTerms, MicroBatches
from samestep.data.loading import Batch, RowWeights, row_weights
from samestep.world.world import World

Make = Callable[[Batch], Mapping[str, Tensor]]
"""From a batch to the rows that are made of it: tensors by name, with one row for each row of the batch."""
_SPLIT = noise.purpose("rollout/split")


def produce(
    world: World,
    prompts: MicroBatches,
    make: Make,
    copies: int,
    count: RowWeights | None,
    counted: CountedTerms,
) -> MicroBatches:
    """The rows that `make` returns for `copies` copies of every row of `prompts`, without a gradient.

    `make` gets all copies of the rows of a micro-batch at once; those of one row follow each other. What it returns is
    then cut into micro-batches as large as those of the prompts. Copies differ in the first column of `ids`, which is
    that of the prompt times `copies`, plus the number of the copy; so noise and dropout keyed by `ids` differ too.
    """
    if copies < 1:
        raise UserError(f"every row needs at least 1 copy, not {copies}")
    batches: list[Batch] = []
    spans: list[tuple[int, int]] = []
    for batch, (start, stop) in zip(prompts.batches, prompts.spans):
        world.activity.made_progress()
        repeated = _repeat(batch, copies)
        with torch.no_grad():  # also for a filler row: a sharded network is called equally often on all ranks
            made = make(repeated)
        size = len(batch["live"])
        rows = {**_made_rows(made, size * copies), **{name: repeated[name] for name in RESERVED}}
        for number in range(copies):
            batches.append({name: value[number * size : (number + 1) * size] for name, value in rows.items()})
            first = start * copies + number * (stop - start)
            spans.append((first, first + stop - start))
    ids = np.repeat(prompts.ids, copies, axis=0)
    ids[:, 0] = ids[:, 0] * copies + np.tile(np.arange(copies), len(prompts.ids))
    bounds = [bound * copies for bound in prompts.bounds]
    produced = _weighed(world, MicroBatches(prompts.step, batches, {}, ids, spans, counted.terms, bounds, count, True))
    counted.names.update(produced.weights)
    return produced


def split_rows(world: World, whole: MicroBatches, parts: int, turn: int = 0) -> list[MicroBatches]:
    """`whole` in parts of equal size, each with its own weights, for several updates on one rollout.

    Which part a row is in follows from the step, from `turn` and from its ids: another turn is another split. A batch
    of fewer rows than parts has one row a part.
    """
    if parts < 1:
        raise UserError(f"a batch is split into at least 1 part, not {parts}")
    parts = min(parts, len(whole.ids))
    high, low = noise.words(_SPLIT, whole.step, turn, whole.ids[:, 0], whole.ids[:, 1])
    places = np.empty(len(whole.ids), dtype=np.int64)
    places[np.lexsort((low, high))] = np.arange(len(whole.ids))
    part_of = places * parts // len(whole.ids)
    rows = _Pool(world, whole)
    return [rows.part(part_of == part) for part in range(parts)]


class _Pool:
    """The rows of a rank's micro-batches, from which parts are taken."""

    def __init__(self, world: World, whole: MicroBatches) -> None:
        self._world, self._whole = world, whole
        shapes = [{name: value.shape[1:] for name, value in batch.items()} for batch in whole.batches]
        largest = max(len(batch["live"]) for batch in whole.batches)
        # Rows that are padded differently cannot be put together. All ranks have to do the same.
        alike = float(all(shape == shapes[0] for shape in shapes))
        told = world.async_gather.submit([alike, float(largest)]).by_rank()
        self._micro_rows = int(max(rows for _, rows in told)) if all(alike for alike, _ in told) else 0
        if self._micro_rows:
            self._spans = [(whole.spans[0][0], whole.spans[-1][1])]
            live = [batch for number, batch in enumerate(whole.batches) if not whole.is_filler(number)]
            held = live or whole.batches[:1]
            self._batches = [{name: torch.cat([batch[name] for batch in held]) for name in shapes[0]}]
        else:
            self._spans, self._batches = whole.spans, whole.batches

    def part(self, chosen: np.ndarray) -> MicroBatches:
        """The chosen rows of the global batch; every rank has the same number of micro-batches."""
        before = np.concatenate([[0], np.cumsum(chosen)])  # of each row, how many were chosen before it
        bounds = [int(before[bound]) for bound in self._whole.bounds]
        most = max(stop - start for start, stop in pairwise(bounds))
        pieces = max(1, -(-most // self._micro_rows)) if self._micro_rows else 1
        batches: list[Batch] = []
        spans: list[tuple[int, int]] = []
        for batch, (start, stop) in zip(self._batches, self._spans):
            rows = np.flatnonzero(chosen[start:stop])
            first = int(before[start])
            for begin, end in pairwise([len(rows) * number // pieces for number in range(pieces + 1)]):
                batches.append(_take(batch, rows[begin:end]))
                spans.append((first + begin, first + end))
        ids, whole = self._whole.ids[chosen], self._whole
        return _weighed(self._world, replace(whole, batches=batches, ids=ids, spans=spans, bounds=bounds))


class Moments(NamedTuple):
    """Of values of all ranks."""

    mean: float
    variance: float
    """Divided by the number of values."""

    @property
    def std(self) -> float:
        """The standard deviation."""
        return self.variance**0.5


def moments(world: World, rows: MicroBatches, name: str) -> Moments:
    """Mean and variance of a value a row over the global batch, in float64.

    They are bit for bit the same on all ranks and at any world size; not a number where a value is not finite.
    """
    mine: list[float] = []
    for number, batch in enumerate(rows.batches):
        if name not in batch:
            raise UserError(f"the rows have no {name!r}; they have {', '.join(map(repr, batch))}")
        if batch[name].shape != batch["live"].shape:
            shape = tuple(batch[name].shape)
            raise UserError(f"moments are of one value a row, but {name!r} has the shape {shape} in a micro-batch")
        mine += [] if rows.is_filler(number) else batch[name].double().tolist()
    largest = max(stop - start for start, stop in pairwise(rows.bounds))
    return exact_moments(world, mine, largest)


def exact_moments(world: World, mine: list[float], largest: int) -> Moments:
    """Mean and variance over the values of all ranks, of which none has more than `largest`."""
    sent = len(mine) if world.dp_counted else 0  # if several ranks have one share, one of them counts it
    padded = [float(sent), *mine, *[0.0] * (largest - len(mine))]
    gathered = world.async_gather.submit(padded).by_rank()
    values = [value for size, *held in gathered for value in held[: int(size)]]
    if not values or not all(map(math.isfinite, values)):
        return Moments(math.nan, math.nan)
    mean = math.fsum(values) / len(values)  # exact sums, which the order of the rows does not change
    return Moments(mean, math.fsum((value - mean) ** 2 for value in values) / len(values))


def _repeat(batch: Batch, copies: int) -> Batch:
    """Every row `copies` times, with ids that tell the copies apart."""
    repeated = {name: value.repeat_interleave(copies, 0) for name, value in batch.items()}
    copy = torch.arange(copies, device=batch["ids"].device).repeat(len(batch["ids"]))
    repeated["ids"][:, 0] = repeated["ids"][:, 0] * copies + copy
    return repeated


def _made_rows(made: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    if not isinstance(made, Mapping):
        raise UserError(f"what makes rows must return a dict of tensors, not a {type(made).__name__}")
    rows = {name: value for name, value in made.items() if name not in RESERVED}
    return {name: value.detach() for name, value in check_batch(rows, size).items()}


def _take(batch: Batch, rows: np.ndarray) -> Batch:
    """Some rows of a batch; if there are none, a filler row."""
    index = torch.as_tensor(rows if len(rows) else np.zeros(1, dtype=np.int64), device=batch["live"].device)
    taken = {name: value[index] for name, value in batch.items()}
    taken["live"] = torch.full_like(taken["live"], len(rows) > 0)
    return taken


def _weighed(world: World, rows: MicroBatches) -> MicroBatches:
    """The same rows with their weights, counted and summed over the ranks now."""
    mine = row_weights(rows.count, rows.batches, rows.spans)
    if mine:
        sent = [weight if world.dp_counted else 0.0 for weight in mine.values()]
        mine = dict(zip(mine, world.async_gather.submit(sent).sums()))
    return replace(rows, weights={**mine, "rows": float(len(rows.ids))})
