"""Losses that couple every row of the global batch with every other, such as in-batch negatives.

Gradients cannot be taken micro-batch by micro-batch there. Instead: embed all rows without gradients, gather the
embeddings of all data-parallel ranks in global order, take the loss of this rank's own rows and its gradient with
respect to all embeddings, add these gradients up over the ranks, then embed each micro-batch again and backpropagate
its slice. The memory of one micro-batch is enough, and the result is the exact gradient of the global batch at any
world size. Where every rank has one micro-batch, it is embedded only once, with gradients.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.wrap import Parallel
from samestep.train.learner.loss_calls import LossCalls
from samestep.world.world import World

Embed = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""Named tensors, one row per row of the batch; those without a gradient (labels) are gathered along."""
Couple = Callable[[Mapping[str, Tensor], slice], Mapping[str, Tensor]]
"""From all rows of the global batch, and which of them are this rank's, to each term's value for its own rows."""
Weigh = Callable[[Mapping[str, Tensor], int], tuple[Tensor, dict[str, Tensor]]]
"""From values for so many rows to the scalar to differentiate, and each term's sum."""


@dataclass
class Coupled:
    """A module, and what its two passes over the micro-batches need."""

    parallel: Parallel
    world: World
    autocast: Callable[[], AbstractContextManager[Any]]
    call: LossCalls
    """Calls `embed` with the network and a micro-batch."""
    weights: Mapping[str, Tensor]
    """What `couple` must not use, by name; empty where that is known."""
    alone: bool = False
    """Whether nothing is communicated: the rows of other ranks are copies of this one's, and gradients stay here."""

    def backward(
        self, micro_batches: MicroBatches, embed: Embed, couple: Couple, weigh: Weigh, scale: Tensor | float
    ) -> tuple[dict[str, Tensor], list[Mapping[str, Tensor]]]:
        """Adds the gradients into the module; returns this rank's sums per term, and its rows by micro-batch."""
        batches, spans = micro_batches.batches, micro_batches.spans
        if len(batches) == 1:  # and so on every rank
            with self.parallel.syncing(last=not self.alone):
                outputs = self._embed(embed, batches[0])
                leaves, sums, rows = self._couple([outputs], micro_batches, couple, weigh)
                (_surrogate(outputs, leaves, spans[0]) * scale).backward()
            return sums, rows
        before = _random_state(self.world.device)
        with torch.no_grad(), self.autocast():
            parts: list[Mapping[str, Tensor]] = [self.call(embed, batch) for batch in batches]
        leaves, sums, rows = self._couple(parts, micro_batches, couple, weigh)
        _set_random_state(before, self.world.device)  # the second pass draws the same dropout as the first
        for number, (batch, span) in enumerate(zip(batches, spans)):
            with self.parallel.syncing(last=number == len(batches) - 1 and not self.alone):
                outputs = self._embed(embed, batch)
                (_surrogate(outputs, leaves, span) * scale).backward()
        return sums, rows

    def _embed(self, embed: Embed, batch: Batch) -> Mapping[str, Tensor]:
        self.parallel.called = False
        with self.autocast():
            outputs = self.call(embed, batch)
        self.call.require_network()
        return outputs

    def _couple(
        self, parts: list[Mapping[str, Tensor]], micro_batches: MicroBatches, couple: Couple, weigh: Weigh
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Mapping[str, Tensor]]]:
        """All rows of the global batch with their gradients; this rank's sums and rows."""
        rank, spans = self.world.dp_rank, micro_batches.spans
        first, end = micro_batches.bounds[rank : rank + 2]
        with self.parallel.measure_wait():
            leaves = _gather(parts, micro_batches, self.world, self.alone)
        with self.autocast():
            values = couple(leaves, slice(first, end))
            total, sums = weigh(values, end - first)
        self._backward_to(leaves, total)
        if self.world.control is not None and not self.alone:
            with self.parallel.measure_wait():
                _add_gradients(leaves, self.world)
        micro_batches.terms.update(sums)
        rows: list[Mapping[str, Tensor]] = [
            {term: value[start - first : stop - first] for term, value in values.items()} for start, stop in spans
        ]
        return leaves, sums, rows

    def _backward_to(self, leaves: Mapping[str, Tensor], total: Tensor) -> None:
        """To the rows, and no further: a weight that `couple` uses would get the gradient of this rank's rows alone."""
        rows = [leaf for leaf in leaves.values() if leaf.requires_grad]
        gradients = torch.autograd.grad(total, [*rows, *self.weights.values()], allow_unused=True)
        for name, gradient in zip(self.weights, gradients[len(rows) :]):
            if gradient is not None:
                raise UserError(
                    f"couple(rows, own) uses the weight {name!r} of the network, whose gradient would depend on the "
                    "number of ranks; use it in embed(module, batch): multiply rows there by a learned scale"
                )
        for leaf, gradient in zip(rows, gradients):
            leaf.grad = gradient


def _surrogate(outputs: Mapping[str, Tensor], leaves: Mapping[str, Tensor], span: tuple[int, int]) -> Tensor:
    """A scalar whose gradient in the outputs is the wanted one; that of a filler row is zero but connected."""
    total = torch.zeros((), device=next(iter(outputs.values())).device)
    start, stop = span
    for name, output in outputs.items():
        gradient = leaves[name].grad
        if gradient is None:
            continue
        wanted = gradient[start:stop] if stop > start else torch.zeros_like(output)
        total = total + torch.where(wanted != 0, output * wanted, 0.0).sum()
    return total


def _gather(
    parts: list[Mapping[str, Tensor]], micro_batches: MicroBatches, world: World, alone: bool
) -> dict[str, Tensor]:
    """All rows of the global batch in their order, as leaves that collect gradients."""
    leaves, spans = {}, micro_batches.spans
    for name in parts[0]:
        mine = torch.cat([part[name].detach()[: stop - start] for part, (start, stop) in zip(parts, spans)])
        mine = mine.float() if mine.dtype in (torch.bfloat16, torch.float16) else mine
        gathered = _concatenate(mine, micro_batches, world, alone)
        leaves[name] = gathered.requires_grad_(gathered.is_floating_point())
    return leaves


def _concatenate(mine: Tensor, micro_batches: MicroBatches, world: World, alone: bool) -> Tensor:
    """Shares are contiguous: pad to the largest, gather, cut."""
    if world.control is None:
        return mine
    sizes = [stop - start for start, stop in pairwise(micro_batches.bounds)]
    padded = mine.new_zeros((max(sizes), *mine.shape[1:]))
    padded[: len(mine)] = mine
    parts = [padded if alone else torch.empty_like(padded) for _ in sizes]
    if not alone:
        dist.all_gather(parts, padded, group=world.dp_group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes)])


def _add_gradients(leaves: Mapping[str, Tensor], world: World) -> None:
    """Over the ranks, each of which has them of its own rows' loss."""
    for leaf in leaves.values():
        if leaf.requires_grad:  # also where this rank's rows do not use it
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            dist.all_reduce(leaf.grad, group=world.dp_group)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
