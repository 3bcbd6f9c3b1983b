"""BatchNorm that does not depend on the number of ranks, for the networks of any library.

    learner = bench.learner(samestep.global_batch_norm(model))           # statistics of the global batch
    learner = bench.learner(samestep.global_batch_norm(model, rows=32))  # of every 32 rows of it

torch's BatchNorm normalises by the rows of a micro-batch, so a row's output depends on how the batch is split. Here it
depends on the global batch alone: on all rows of it, whose sums the ranks add up in the forward and in the backward
pass, or on a group of `rows` consecutive ones, which are never split between micro-batches. Filler rows do not count.

Running statistics move once for each step that is applied, by all rows of the step: not by what activation
checkpointing computes again, by passes that are only tried, or by a step whose gradient was not finite.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.models.wide import wide
from samestep.parallel.build import without_wrappers
from samestep.world.world import World

Fix = Callable[[str, Callable[[], Json]], Json]
_DIMENSIONS: dict[type[nn.Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
    nn.SyncBatchNorm: (2, 3, 4, 5),
}
"""How many dimensions an input may have, by the class that is replaced."""


class _Statistics(NamedTuple):
    """Of each group of rows, in float64, so that sums over ranks lose nothing."""

    values: Tensor
    """[groups, 1]: values in a channel."""
    mean: Tensor
    """[groups, channels]."""
    squares: Tensor
    """[groups, channels]: the sum of squared distances from the mean."""

    def total(self) -> Tensor:
        """What the running statistics need, added up over the groups: sums, squares, values, degrees of freedom."""
        freedom = (self.values - 1).clamp(min=0)
        return torch.cat([(self.values * self.mean).sum(0), self.squares.sum(0), self.values.sum(0), freedom.sum(0)])


class BatchNorms:
    """What the global batch norms of a learner's network share: the rows that they see, and how these are grouped."""

    def __init__(
        self, network: nn.Module, learner: str, world: World, fix: Fix = lambda what, decide: decide()
    ) -> None:
        """`fix` gives what the first launch of a run decided."""
        named = [(without_wrappers(name), part) for name, part in network.named_modules()]
        _refuse_sync_batch_norm(named, learner)
        self._named = {part: name for name, part in named if isinstance(part, GlobalBatchNorm)}
        self._learner = learner
        self._group = world.dp_group
        self._has_ranks = world.control is not None
        self.rows = self._common_rows()
        """How many consecutive rows of the global batch are normalised together; None: all of them."""
        self.live: Tensor | None = None
        """Which rows of the micro-batch count; None outside of an update."""
        self._is_collecting = False
        self._totals: dict[GlobalBatchNorm, Tensor] = {}
        for part, name in self._named.items():
            part.attach(self, name)
        if self:
            self._check_first_launch(fix(f"batch_norm_rows/{learner}", lambda: self.rows))

    def __bool__(self) -> bool:
        return bool(self._named)

    def _common_rows(self) -> int | None:
        found = {part.rows: name for part, name in self._named.items()}
        if len(found) > 1:
            places = " and ".join(f"rows={rows} in {name!r}" for rows, name in found.items())
            raise UserError(
                f"the batch norms of learner {self._learner!r} have groups of several sizes, {places}; call "
                "global_batch_norm once for the whole network"
            )
        return next(iter(found), None)

    def _check_first_launch(self, fixed: Json) -> None:
        """Refuse another size of the groups than the run began with: it would be another function."""
        if fixed != self.rows:
            raise UserError(
                f"learner {self._learner!r} was started with global_batch_norm(model, rows={fixed}) and now has "
                f"rows={self.rows}; give it rows={fixed} again, or start a new run"
            )

    @contextmanager
    def updating(self, micro_batches: MicroBatches) -> Iterator[None]:
        """Around the passes of one update; refuses micro-batches by which its statistics would not be exact."""
        if self:
            self._check(micro_batches)
        try:
            yield
        finally:
            self.live = None

    def _check(self, micro_batches: MicroBatches) -> None:
        spans, total = micro_batches.spans, len(micro_batches.ids)
        if self.rows is None and len(spans) > 1:
            raise UserError(
                f"the batch norms of learner {self._learner!r} take the statistics of the whole global batch, but a "
                f"step has {len(spans)} micro-batches on each rank; set batch_size to at least "
                f"{max(stop for _, stop in spans) - spans[0][0]} rows, use more ranks, or fix the size of the groups: "
                "samestep.global_batch_norm(model, rows=32)"
            )
        if self.rows is None:
            return
        for batch, (start, stop) in zip(micro_batches.batches, spans):
            if len(batch["live"]) != max(1, stop - start):
                raise UserError(
                    f"learner {self._learner!r} normalises groups of {self.rows} rows, but got "
                    f"{len(batch['live'])} rows for {stop - start} of the global batch; use "
                    "samestep.global_batch_norm(model) without rows"
                )
            if start < stop and (start % self.rows or (stop % self.rows and stop < total)):
                raise UserError(
                    f"learner {self._learner!r} normalises groups of {self.rows} rows, but a micro-batch has the rows "
                    f"{start} to {stop - 1} of the global batch and cuts a group; call "
                    f"feed.keep_together({self.rows}) before the first step (Fit does)"
                )

    def restart(self) -> None:
        """Forget what was collected: passes that were only tried, or an update that was not applied."""
        self._totals = {}

    @contextmanager
    def calling(self, batch: Batch, count: int) -> Iterator[None]:
        """Around a call of the network on a micro-batch, of which only the first `count` rows are no repetitions."""
        live = batch["live"]
        self.live = live & (torch.arange(len(live), device=live.device) < count) if len(live) > count else live
        self._is_collecting = torch.is_grad_enabled()  # a coupled loss calls it first without
        try:
            yield
        finally:
            self._is_collecting = False  # what is called from now on is computed again

    def measure(self, norm: "GlobalBatchNorm", x: Tensor, live: Tensor) -> _Statistics:
        """The statistics of what a module was given, [rows, channels, positions]."""
        found = _of_groups(x, live, self.rows or len(x))
        if self.rows is None and self._has_ranks:
            found = self._add_ranks(found)
        if self._is_collecting:
            total = found.total()
            self._totals[norm] = self._totals[norm] + total if norm in self._totals else total
        return found

    def _add_ranks(self, own: _Statistics) -> _Statistics:
        channels = own.mean.shape[1]
        sums = torch.cat([own.values, own.values * own.mean, own.squares + own.values * own.mean.square()], dim=1)
        self.reduce(sums)
        count, total, squares = sums.split([1, channels, channels], dim=1)
        mean = total / count.clamp(min=1)
        return _Statistics(count, mean, (squares - count * mean.square()).clamp(min=0))

    def reduce(self, sums: Tensor) -> None:
        """Add them up over the ranks, in place."""
        if self._has_ranks:
            dist.all_reduce(sums, group=self._group)

    @torch.no_grad()
    def apply(self, bad: Tensor) -> None:
        """Move the running statistics by what was collected, unless the update was `bad`; one message for all."""
        totals, self._totals = self._totals, {}
        if not totals:
            return
        packed = torch.cat(list(totals.values()))
        if self.rows is not None:
            self.reduce(packed)
        for norm, total in zip(totals, packed.split([len(total) for total in totals.values()])):
            norm.move(total, bad)


class GlobalBatchNorm(_BatchNorm):
    """BatchNorm over the rows of the global batch, or over groups of `rows` of them, however the batch is split."""

    def __init__(self, replaced: _BatchNorm, rows: int | None, name: str) -> None:
        """With the parameters and the running statistics of the module that it replaces."""
        super().__init__(replaced.num_features, replaced.eps, replaced.momentum, replaced.affine, device="meta")
        self.rows, self.name = rows, name
        self._dimensions = next(found for kind, found in _DIMENSIONS.items() if isinstance(replaced, kind))
        self._parameters, self._buffers = replaced._parameters, replaced._buffers
        self.training = replaced.training
        self._norms: BatchNorms | None = None

    def attach(self, norms: BatchNorms, name: str) -> None:
        """Become part of a learner's network, under the name that it has there."""
        self._norms, self.name = norms, name

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to no learner."""
        return {**self.__dict__, "_norms": None}

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._dimensions:
            wanted = " or ".join(map(str, self._dimensions))
            raise UserError(
                f"batch norm {self.name!r} got an input of shape {tuple(input.shape)}, and needs {wanted} dimensions: "
                "rows, channels, positions"
            )

    def forward(self, input: Tensor) -> Tensor:
        """`input` ([rows, channels, ...]) normalised by its group of rows; by the running statistics in evaluation."""
        self._check_input_dim(input)
        if self.training:
            return self._normalize(input)
        mean, variance = self.running_mean, self.running_var
        return nn.functional.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)

    @torch.compiler.disable
    def _normalize(self, x: Tensor) -> Tensor:
        norms, live = self._norms, self._live(x)
        assert norms is not None
        with torch.no_grad():
            found = norms.measure(self, _flat(wide(x)), live)
        result: Tensor = _Normalize.apply(x, self.weight, self.bias, live, found, self.eps, norms)
        return result

    def _live(self, x: Tensor) -> Tensor:
        """Which rows of an input count; refuses one whose rows are not known."""
        if self._norms is None:
            raise UserError(
                f"batch norm {self.name!r} belongs to no learner and does not know the rows of the global batch; make "
                "the learner from the network after global_batch_norm, or put the network into evaluation mode"
            )
        live = self._norms.live
        if live is None:
            raise UserError(
                f"batch norm {self.name!r} is used in training mode outside of its learner's update, where there is no "
                "global batch; put the network into evaluation mode there (as learner.inference() does; inside "
                "held_constant() call .eval() and later .train() on it)"
            )
        if x.shape[0] != live.shape[0]:
            raise UserError(
                f"batch norm {self.name!r} got an input of shape {tuple(x.shape)} in a micro-batch of "
                f"{live.shape[0]} rows, and its first dimension must be those rows; let the network put the batch "
                "first, or use GroupNorm in its place"
            )
        return live

    def move(self, total: Tensor, bad: Tensor) -> None:
        """Move the running statistics by the rows of one step (`_Statistics.total`), unless it was `bad`."""
        mean, variance, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert batches is not None
        sums, squares, count, freedom = total.split([self.num_features, self.num_features, 1, 1])
        moves = (bad == 0) & (count > 0)
        batches += moves.sum()
        factor = 1 / batches.clamp(min=1).double() if self.momentum is None else self.momentum
        for running, now, known in ((mean, sums / count, moves), (variance, squares / freedom, moves & (freedom > 0))):
            moved = running.double() * (1 - factor) + now * factor
            running.copy_(torch.where(known, moved, running.double()))

    def extra_repr(self) -> str:
        """Like that of torch's own modules."""
        return f"{super().extra_repr()}, rows={self.rows}"


def global_batch_norm(module: nn.Module, rows: int | None = None) -> nn.Module:
    """`module` with a `GlobalBatchNorm` in place of every nn.BatchNorm1d, 2d, 3d and nn.SyncBatchNorm; for a learner's
    network. Parameters and buffers keep their names and values.

    Without `rows` the statistics are those of the whole global batch, and a step must have one micro-batch on each
    rank. With `rows` they are those of every so many consecutive rows of it, and micro-batches are cut between them.
    """
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 2):
        raise UserError(
            f"rows of global_batch_norm is {rows!r}; give a whole number from 2 up, the rows that are normalised "
            "together, or nothing for the whole global batch"
        )
    new: dict[nn.Module, GlobalBatchNorm] = {}  # a module that is used in two places stays one
    for name, part in module.named_modules():
        if _is_replaceable(part):
            assert isinstance(part, _BatchNorm)
            _refuse_without_running_statistics(part, name)
            new[part] = GlobalBatchNorm(part, rows, name)
    for parent in list(module.modules()):
        for name, part in list(parent._modules.items()):
            if part in new:
                setattr(parent, name, new[part])
    return new.get(module, module)


def takes_micro_batch_statistics(module: nn.Module) -> bool:
    """Whether it is a BatchNorm that normalises by the rows of a micro-batch, as it stands."""
    if not isinstance(module, _BatchNorm) or isinstance(module, GlobalBatchNorm):
        return False
    return module.training or module.running_mean is None


def has_global_batch_norm(network: nn.Module) -> bool:
    """Whether rows of a network depend on other rows of the global batch, and are meant to."""
    return any(isinstance(part, GlobalBatchNorm) for part in network.modules())


def _is_replaceable(module: nn.Module) -> bool:
    """Whether it is torch's own, or a class that inherits their forward."""
    return isinstance(module, tuple(_DIMENSIONS)) and type(module).forward in (
        _BatchNorm.forward,
        nn.SyncBatchNorm.forward,
    )


def _refuse_without_running_statistics(part: _BatchNorm, name: str) -> None:
    if part.running_mean is None:
        raise UserError(
            f"batch norm {name!r} has no running statistics, so it would normalise validation rows by whatever rows "
            "are beside them; make it with track_running_stats=True"
        )


def _refuse_sync_batch_norm(named: list[tuple[str, nn.Module]], learner: str) -> None:
    for name, part in named:
        if isinstance(part, nn.SyncBatchNorm) and part.training:
            raise UserError(
                f"nn.SyncBatchNorm in {name!r} of learner {learner!r} counts filler rows and normalises by a "
                "micro-batch of each rank, so the run would depend on the number of ranks; use "
                "samestep.global_batch_norm(model), which replaces it"
            )


def _flat(x: Tensor) -> Tensor:
    """[rows, channels, positions]."""
    return x.reshape(*x.shape[:2], -1)


def _of_groups(x: Tensor, live: Tensor, size: int) -> _Statistics:
    """Statistics of each `size` consecutive rows of [rows, channels, positions], as far as they count; of each row
    first, since that takes one pass over `x`."""
    variances, means = torch.var_mean(x, dim=2, correction=0)
    count = _by_group(torch.full_like(means[:, :1], x.shape[2]), live, size)
    mean = _by_group(means.double() * x.shape[2], live, size) / count.clamp(min=1)
    distances = variances + (means - mean.repeat_interleave(size, 0)[: len(x)]).square()
    return _Statistics(count, mean, _by_group(distances * x.shape[2], live, size))


def _by_group(values: Tensor, live: Tensor, size: int) -> Tensor:
    """The sum of the rows that count in each group. Selected, not multiplied by zero: a filler row may be NaN."""
    counted = torch.where(live[:, None], values.double(), 0.0)
    filled = nn.functional.pad(counted, (0, 0, 0, -len(values) % size))
    return filled.unflatten(0, (-1, size)).sum(1)


def _by_row(values: Tensor, x: Tensor, size: int) -> Tensor:
    """What belongs to a group, for each of its rows and for all positions, in the type of `x`."""
    return values.to(x.dtype).repeat_interleave(size, 0)[: len(x), :, None]


class _Normalize(torch.autograd.Function):
    """Rows normalised by statistics of their groups; keeps no more than its input for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        live: Tensor,
        found: _Statistics,
        eps: float,
        norms: BatchNorms,
    ) -> Tensor:
        flat, size = _flat(wide(x)), norms.rows or len(x)
        scale = (found.squares / found.values.clamp(min=1) + eps).rsqrt()
        ctx.save_for_backward(x, weight, live, found.values, found.mean, scale)
        ctx.norms = norms
        factor, shift = scale, -found.mean * scale
        if weight is not None and bias is not None:
            factor, shift = factor * weight, shift * weight + bias
        result = torch.addcmul(_by_row(shift, flat, size), flat, _by_row(factor, flat, size))
        return result.reshape(x.shape).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, live, count, mean, scale = ctx.saved_tensors
        flat, given, size = _flat(wide(x)), _flat(wide(gradient)), ctx.norms.rows or len(x)
        centered = (flat - _by_row(mean, flat, size)).masked_fill_(~live[:, None, None], 0.0)
        sums = [_by_group(values, live, size) for values in (given.sum(2), torch.linalg.vecdot(given, centered))]
        of_bias, of_weight = sums[0].sum(0), (sums[1] * scale).sum(0)  # of this rank: DDP or FSDP adds them up
        of_x = None
        if ctx.needs_input_grad[0]:
            packed = torch.stack(sums)
            if ctx.norms.rows is None:
                ctx.norms.reduce(packed)
            first, second = packed / count.clamp(min=1)
            factor = scale if weight is None else scale * weight
            through = torch.where(live[:, None, None], _by_row(-factor * first, flat, size), 0.0)
            through = torch.addcmul(through, centered, _by_row(-factor * scale.square() * second, flat, size))
            of_x = torch.addcmul(through, given, _by_row(factor, flat, size)).reshape(x.shape).to(x.dtype)
        if weight is None:
            return of_x, *[None] * 6
        return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype), *[None] * 4
