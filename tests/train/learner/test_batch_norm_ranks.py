"""A network with global batch norm is one run at any number of ranks: that of torch's BatchNorm on whole batches."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from samestep.core.errors import UserError
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.train.api.fit import Fit
from samestep.train.learner.batch_norm import global_batch_norm
from samestep.train.learner.learner import Learner
from samestep.train.record.progress import Tick
from samestep.world.world import World
from toys import (
    LONE,
    WORLDS,
    ByHand,
    Case,
    Points,
    close,
    feed_of,
    in_worlds,
    learner_of,
    made,
    on_ranks,
    rate,
    same_everywhere,
    weights_of,
)

SIZE, BATCH, STEPS = 23, 9, 6  # steps of 9, 9 and 5 rows
DECAYED = ("image.weight", "first.weight", "last.weight")
SEVEN = (7, "ddp")  # at 5 rows two ranks have nothing but a filler row


class Normed(nn.Module):
    """Batch norm of a small image, and of features in a part that may be computed again."""

    def __init__(self, again: Callable | None = None) -> None:
        super().__init__()
        # Without biases, which a batch norm takes out again: their gradient is rounding, by which AdamW moves them.
        self.image, self.norm = nn.Conv2d(1, 3, 1, bias=False), nn.BatchNorm2d(3, momentum=0.3)
        self.first, self.block = (
            nn.Linear(12, 5, bias=False),
            nn.Sequential(nn.BatchNorm1d(5, momentum=None), nn.Tanh()),
        )
        self.last = nn.Linear(5, 2)
        self.shard_units = [self.first]
        self.again = again or (lambda part, x: part(x))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.image(x.view(-1, 1, 2, 2))))
        return self.last(self.again(self.block, self.first(h.flatten(1))))


class OfGroups(nn.Module):
    """The reference for groups: a loop over them, each by torch's own function."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, rows: int) -> None:
        super().__init__()
        self.rows, self.momentum = rows, norm.momentum
        self._parameters, self._buffers = norm._parameters, norm._buffers

    def forward(self, x: Tensor) -> Tensor:
        groups = x.split(self.rows)
        with torch.no_grad():
            values = [group.transpose(0, 1).flatten(1) for group in groups]
            freedom = sum(group.shape[1] - 1 for group in values)
            variance = sum(group.var(1) * (group.shape[1] - 1) for group in values) / freedom
            self.num_batches_tracked += 1
            factor = self.momentum or 1 / float(self.num_batches_tracked)
            self.running_mean.lerp_(torch.cat(values, 1).mean(1), factor)
            self.running_var.lerp_(variance, factor)
        norm = partial(nn.functional.batch_norm, running_mean=None, running_var=None, training=True)
        return torch.cat([norm(group, weight=self.weight, bias=self.bias) for group in groups])


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def reference(rows: int | None = None) -> dict[str, Tensor]:
    """One process, whole batches, torch's own batch norm; in groups by a loop."""
    module = made(Normed)
    if rows:
        module.norm, module.block[0] = OfGroups(module.norm, rows), OfGroups(module.block[0], rows)
    hand, points, order = ByHand(module, DECAYED), Points(SIZE), Shuffled(SIZE, BATCH, seed=3)
    for step in range(STEPS):
        hand.update(error(module, points.rows(order.ids(step)[:, 1]))["error"].mean(), rate(step))
    return module.state_dict()


def network(rows: int | None = None, again: Callable | None = None) -> nn.Module:
    return global_batch_norm(made(lambda: Normed(again)), rows)


def fitted(learner: Learner, world: World, micro: int = 100, steps: int = STEPS) -> Learner:
    task = Fit(learner, feed_of(Points(SIZE), world, BATCH, micro, STEPS), error)
    for step in range(steps):
        task.step(Tick(step, 0, last_of_epoch=False))
    return learner


def the_run_is_that_of_torch_on_whole_batches(world: World, strategy: str) -> None:
    learner = fitted(learner_of(network(), world, strategy), world)
    close(weights_of(learner), reference())
    same_everywhere(world, [learner.module.norm.running_var, learner.module.block[0].running_mean])
    assert learner.loss_calls.rank_dependence == []


def groups_are_those_of_a_loop(world: World, strategy: str) -> None:
    """However many micro-batches there are; groups are of 3 rows, the last of a smaller step of 2."""
    for micro in (3, 4, 6, 100):
        learner = fitted(learner_of(network(3), world, strategy), world, micro)
        close(weights_of(learner), reference(3))
        assert learner.loss_calls.rank_dependence == []


def torchs_own_is_another_run(world: World, strategy: str) -> None:
    """That the proofs above can fail. At more ranks it refuses a micro-batch of one row."""
    learner = fitted(learner_of(made(Normed), world, strategy), world)
    with pytest.raises(AssertionError, match="not close"):
        close(weights_of(learner), reference())


def what_is_computed_again_counts_once(world: World, strategy: str) -> None:
    for reentrant in (False, True):
        again = partial(checkpoint, use_reentrant=reentrant)
        close(weights_of(fitted(learner_of(network(None, again), world, strategy), world)), reference())
        close(weights_of(fitted(learner_of(network(3, again), world, strategy), world, 3)), reference(3))


def evaluation_is_by_running_statistics(world: World, strategy: str) -> None:
    learner = fitted(learner_of(network(), world, strategy), world)
    plain, x = made(Normed), Points(5).x
    plain.load_state_dict(weights_of(learner))
    before = weights_of(learner)
    with learner.inference() as module:
        torch.testing.assert_close(module(x), plain.eval()(x), rtol=1e-12, atol=1e-12)
    close(weights_of(learner), before, tolerance=0)


def a_step_that_is_not_finite_moves_no_statistics(world: World, strategy: str) -> None:
    def infinite(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {
            "error": error(module, batch)["error"]
            * torch.where(batch["ids"][:, 1] == batch["ids"][0, 1], 1e308, 1) ** 2
        }

    for rows in (None, 3):
        learner = fitted(learner_of(network(rows), world, strategy), world, steps=2)
        before = weights_of(learner)
        feed = feed_of(Points(SIZE), world, BATCH, 100, STEPS)
        feed.keep_together(learner.rows_together)
        learner.update(feed[2], infinite)
        close(weights_of(learner), before, tolerance=0)


def both_passes_of_a_coupled_loss_count_once(world: World, strategy: str) -> None:
    def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"out": module(batch["x"]), "y": batch["y"]}

    def couple(rows: dict[str, Tensor], own: slice) -> dict[str, Tensor]:
        return {"error": (rows["out"] - rows["y"]).square().sum(1)[own]}

    for micro in (3, 100):
        learner = learner_of(network(3), world, strategy)
        feed = feed_of(Points(SIZE), world, BATCH, micro, STEPS)
        feed.keep_together(learner.rows_together)
        for step in range(STEPS):
            learner.update_coupled(feed[step], embed, couple)
        close(weights_of(learner), reference(3))


def several_micro_batches_are_refused_without_groups(world: World, strategy: str) -> None:
    with pytest.raises(
        UserError, match=r"whole global batch, but a step has \d micro-batches .* at least \d rows, use"
    ):
        fitted(learner_of(network(), world, strategy), world, micro=1)


def the_exact_state_goes_on(world: World, strategy: str) -> None:
    """A learner that continues from another's state has the statistics too."""
    first = fitted(learner_of(network(3), world, strategy), world, steps=3)
    second = learner_of(network(3), world, strategy)
    state = first.state_dict()
    second.prepare_load(state)
    second.load_state_dict(state)
    feed = feed_of(Points(SIZE), world, BATCH, 3, STEPS)
    feed.keep_together(3)
    for step in range(3, STEPS):
        second.update(feed[step], error)
    close(weights_of(second), reference(3))


CASES: list[Case] = [
    the_run_is_that_of_torch_on_whole_batches,
    groups_are_those_of_a_loop,
    in_worlds([(2, "ddp"), (2, "fsdp")])(torchs_own_is_another_run),
    in_worlds([*LONE, (2, "ddp"), (3, "ddp"), (3, "fsdp")])(what_is_computed_again_counts_once),
    in_worlds([*LONE, (2, "fsdp"), (3, "ddp")])(evaluation_is_by_running_statistics),
    in_worlds([*LONE, (2, "ddp"), (3, "fsdp")])(a_step_that_is_not_finite_moves_no_statistics),
    in_worlds([*LONE, (2, "ddp"), (3, "fsdp")])(both_passes_of_a_coupled_loss_count_once),
    in_worlds([*LONE, (2, "ddp")])(several_micro_batches_are_refused_without_groups),
    in_worlds([*LONE, (3, "ddp")])(the_exact_state_goes_on),
]
for case in CASES[:2]:
    in_worlds([*WORLDS, SEVEN])(case)

test_on_ranks = on_ranks(CASES, [*WORLDS, SEVEN])
