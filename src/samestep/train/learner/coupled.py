"""Losses that couple every row of the global batch with every other, such as in-batch negatives.

Gradients cannot be taken micro-batch by micro-batch there. Instead: embed all rows without gradients, gather the
embeddings of all data-parallel ranks in global order, take the loss and its gradient with respect to the embeddings
(every rank computes the same), then embed each micro-batch again and backpropagate its slice of that
gradient. The memory of one micro-batch is enough, and the result is the exact gradient of the global batch at any world
size.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.wrap import Parallel
from samestep.world.world import World

Embed = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""Named tensors, one row per row of the batch; those without a gradient (labels) are gathered along."""
Couple = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""From all rows of the global batch to each term's sum per row."""


@dataclass
class Coupled:
    """A module, and what its two passes over the micro-batches need."""

    parallel: Parallel
    world: World
    autocast: Callable[[], AbstractContextManager[Any]]
    call: Callable[[Embed, Batch], Mapping[str, Tensor]]
    """Calls `embed` with the network and a micro-batch."""
    check_called: Callable[[], None]
    """Refuses an `embed` that bypassed the wrapper, which would skip gradient synchronisation."""

    def backward(
        self,
        micro_batches: MicroBatches,
        embed: Embed,
        couple: Couple,
        weigh: Callable[[Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]],
        scale: Tensor | float,
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        """Adds the gradients into the module; returns the loss's sums per term and its rows, equal on every rank."""
        before = _random_state(self.world.device)
        with torch.no_grad(), self.autocast():
            parts = [self.call(embed, batch) for batch in micro_batches.batches]
        with self.parallel.measure_wait():
            leaves = _gather(parts, micro_batches, self.world)
        with self.autocast():
            rows = couple(leaves)
            total, sums = weigh(rows)
        total.backward()
        _set_random_state(before, self.world.device)  # the second pass draws the same dropout as the first
        for number, (batch, span) in enumerate(zip(micro_batches.batches, micro_batches.spans)):
            last = number == len(micro_batches.batches) - 1
            with self.parallel.syncing(last):
                self.parallel.called = False
                with self.autocast():
                    outputs = self.call(embed, batch)
                    surrogate = _surrogate(outputs, leaves, span)
                self.check_called()
                (surrogate * scale).backward()
        micro_batches.terms.update(sums)
        return sums, rows


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


def _gather(parts: list[Mapping[str, Tensor]], micro_batches: MicroBatches, world: World) -> dict[str, Tensor]:
    """All rows of the global batch in their order, as leaves that collect gradients."""
    leaves = {}
    for name in parts[0]:
        mine = torch.cat([part[name][: stop - start] for part, (start, stop) in zip(parts, micro_batches.spans)])
        gathered = _concatenate(
            mine.float() if mine.dtype in (torch.bfloat16, torch.float16) else mine, micro_batches, world
        )
        leaves[name] = gathered.requires_grad_(gathered.is_floating_point())
    return leaves


def _concatenate(mine: Tensor, micro_batches: MicroBatches, world: World) -> Tensor:
    """Shares are contiguous: pad to the largest, gather, cut."""
    if world.control is None:
        return mine
    sizes = [stop - start for start, stop in pairwise(micro_batches.bounds)]
    padded = mine.new_zeros((max(sizes), *mine.shape[1:]))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=world.dp_group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes)])


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
