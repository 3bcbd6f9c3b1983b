"""Metrics of a whole data set that are no means over its rows: F1, AUC, recall@k, correlation.

    ranking = WholeSet(outputs=lambda module, batch: {"score": module(batch["x"])[:, 0], "label": batch["label"]},
                       metrics=lambda rows: {"auc": auc(rows["score"], rows["label"])})
    Fit(learner, feed, loss, validation=bench.evaluation_feed(rows), whole_set=ranking)

Every rank computes its share; the rows are then put together in their order, each once, so the metrics do not depend
on the number of ranks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.feed import Feed
from samestep.data.loading import Batch
from samestep.train.learner.learner import Learner
from samestep.world.world import World

Outputs = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""(module, batch) to tensors by name, each with one entry per row of the batch."""
_IDS = "ids"


@dataclass(frozen=True)
class WholeSet:
    """Metrics of a whole data set: what each row gives, and what is computed of all rows together."""

    outputs: Outputs
    """(network, batch) to tensors by name, with one entry for each row: few numbers, not logits."""
    metrics: Callable[[dict[str, Tensor]], Mapping[str, float]]
    """(tensors of all rows, on the CPU, in row order) to metrics by name. Called on rank 0, which shares the result."""

    def evaluate(self, learner: Learner, feed: Feed) -> dict[str, float]:
        """The metrics of every row of `feed`, equal on all ranks. Rank 0 holds the outputs of all rows meanwhile."""
        rows, world = gather_rows(learner, feed, self.outputs, everywhere=False), learner.world

        def compute() -> dict[str, float]:
            return {name: float(value) for name, value in self.metrics(rows).items()} if world.is_main else {}

        found: dict[str, float] = world.run_on_all_ranks("computing metrics of the whole set", compute)[0]
        return found


def gather_rows(learner: Learner, feed: Feed, outputs: Outputs, *, everywhere: bool = True) -> dict[str, Tensor]:
    """What `outputs` gives for every row of `feed` (an evaluation feed), on the CPU, in row order, each row once.

    Every rank calls it, and has all rows in memory afterwards; without `everywhere` only rank 0 has them, and the
    others get an empty dict. So give back few numbers a row: a score, not logits over a vocabulary. All rows of a name
    must have the same shape, so pad what varies.
    """
    world, parts = learner.world, _Parts()
    with learner.inference() as module:
        for micro_batches in feed:
            for batch, (start, stop) in zip(micro_batches.batches, micro_batches.spans):
                parts.add(outputs(module, batch), batch["live"], micro_batches.ids[start:stop])
    found = gather_tensors(world, parts.joined(counted=world.dp_counted), everywhere)
    if not found:
        return {}
    ids = found.pop(_IDS).numpy()
    in_order = torch.from_numpy(np.lexsort((ids[:, 1], ids[:, 0])))
    if feed.is_cut:  # its rows stand in for all the others: what is computed of them is tried only
        in_order = in_order.repeat(-(-feed.order.size // len(in_order)))[: feed.order.size]
    return {name: tensor[in_order] for name, tensor in found.items()}


class _Parts:
    """What this rank has computed so far."""

    def __init__(self) -> None:
        self._tensors: dict[str, list[Tensor]] = {}

    def add(self, outputs: Mapping[str, Tensor], live: Tensor, ids: np.ndarray) -> None:
        """Add a micro-batch without its filler rows."""
        for name, tensor in outputs.items():
            if tensor.ndim == 0 or len(tensor) != len(live):
                raise UserError(
                    f"the output {name!r} has the shape {list(tensor.shape)} for {len(live)} rows; give one entry a row"
                )
            if name == _IDS:
                raise UserError(f"an output cannot be named {_IDS!r}; choose another name")
            self._add(name, tensor.detach()[live.to(tensor.device)].cpu())
        self._add(_IDS, torch.from_numpy(ids))

    def _add(self, name: str, tensor: Tensor) -> None:
        known = self._tensors.setdefault(name, [])
        if known and known[0].shape[1:] != tensor.shape[1:]:
            raise UserError(_other_shape(name, known[0].shape[1:], tensor.shape[1:]))
        known.append(tensor)

    def joined(self, counted: bool) -> dict[str, Tensor]:
        """All of it by name; nothing of it where another rank counts this share."""
        joined = {name: torch.cat(tensors) for name, tensors in self._tensors.items()}
        return joined if counted else {name: tensor[:0] for name, tensor in joined.items()}


def gather_tensors(world: World, own: dict[str, Tensor], everywhere: bool = True) -> dict[str, Tensor]:
    """The tensors of all ranks, which may have different numbers of rows, one after another; not `everywhere`: on rank
    0 alone."""
    if world.control is None:
        return own
    layouts = world.gather({name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in own.items()})
    for other in layouts:
        if sorted(other) != sorted(layouts[0]):
            raise UserError(f"the outputs are {sorted(layouts[0])} on one rank and {sorted(other)} on another")
        for name, (shape, kind) in layouts[0].items():
            if other[name][0][1:] != shape[1:] or other[name][1] != kind:
                raise UserError(_other_shape(name, [*shape[1:], kind], [*other[name][0][1:], other[name][1]]))
    found = {}
    for name in sorted(own):
        counts = [layout[name][0][0] for layout in layouts]
        parts = _gather_tensor(world, own[name], max(counts), everywhere)
        if parts:
            found[name] = torch.cat([part[:count] for part, count in zip(parts, counts)])
    return found


def _gather_tensor(world: World, own: Tensor, most: int, everywhere: bool) -> list[Tensor]:
    """Every rank's tensor, filled up to `most` rows; empty on ranks that do not get it."""
    filled = own.new_zeros((most, *own.shape[1:]))
    filled[: len(own)] = own
    raw = filled.flatten().view(torch.uint8)  # bytes: the backend does not know every type
    receives = everywhere or world.is_main
    parts = [torch.empty_like(raw) for _ in range(world.size)] if receives else None
    if everywhere:
        dist.all_gather(parts, raw, group=world.control)
    else:
        dist.gather(raw, parts, dst=0, group=world.control)
    return [part.view(own.dtype).view(filled.shape) for part in parts or ()]


def _other_shape(name: str, first: Iterable[object], other: Iterable[object]) -> str:
    return f"the output {name!r} is {list(first)} for some rows and {list(other)} for others; pad it to one shape"
