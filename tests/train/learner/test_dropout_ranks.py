"""A network with keyed dropout is the same run however its batches are split, with recomputation and with coupling."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from samestep.data.feed import Feed
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.train.learner.dropout import keyed_dropout, share_key
from samestep.train.learner.learner import Learner
from samestep.train.record.progress import Progress
from samestep.world.world import World
from toys import ByHand, Case, Points, close, feed_of, learner_of, made, on_ranks, rate, weights_of

SPLITS = [(23, 8, 2), (23, 8, 100), (10, 7, 1), (5, 2, 1)]
STEPS = 4


class Dropping(nn.Module):
    """Dropout of elements and of channels, before and inside a part that may be computed again."""

    def __init__(self, again: Callable | None = None) -> None:
        super().__init__()
        self.first, self.drop, self.channels = nn.Linear(4, 6), nn.Dropout(0.3), nn.Dropout1d(0.4)
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2, inplace=True), nn.Tanh(), nn.Dropout(0.5))
        self.last = nn.Linear(6, 2)
        self.shard_units = [self.first]
        self.again = again or (lambda part, x: part(x))

    def forward(self, x: Tensor) -> Tensor:
        h = self.channels(self.drop(self.first(x)).unflatten(1, (2, 3)))
        return self.last(self.again(self.block, h).flatten(1) + 0.1)


def network(again: Callable | None = None) -> nn.Module:
    return keyed_dropout(made(lambda: Dropping(again)))


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def trained(learner: Learner, feed: Feed, times: int = 1) -> dict[str, Tensor]:
    """The weights after a few steps of so many updates each."""
    for step in range(STEPS):
        micro_batches = feed[step]
        for _ in range(times):
            learner.update(micro_batches, error)
    return weights_of(learner)


def reference(size: int, batch: int, times: int = 1) -> dict[str, Tensor]:
    """One process, the whole batch at once."""
    learner = learner_of(network(), World.single(), "lone", seed=7)
    return trained(learner, feed_of(Points(size), World.single(), batch, 100, STEPS), times)


def the_run_is_the_same(world: World, strategy: str) -> None:
    for times, (size, batch, micro) in zip((1, 2, 2, 1), SPLITS):
        learner = learner_of(network(), world, strategy, seed=7)
        feed = feed_of(Points(size), world, batch, micro, STEPS)
        close(trained(learner, feed, times), reference(size, batch, times))
        assert learner.loss_calls.rank_dependence == []


def torchs_own_dropout_is_not(world: World, strategy: str) -> None:
    """That the proof above can fail."""
    learner = learner_of(made(Dropping), world, strategy, seed=7)
    found = trained(learner, feed_of(Points(23), world, 8, 2, STEPS))
    with pytest.raises(AssertionError, match="not close"):
        close(found, reference(23, 8))
    assert len(learner.loss_calls.rank_dependence) == 2  # nn.Dropout and nn.Dropout1d


def what_is_computed_again_is_the_same(world: World, strategy: str) -> None:
    for reentrant in (False, True):
        # Without torch's own random state: only the key makes the masks agree.
        again = partial(checkpoint, use_reentrant=reentrant, preserve_rng_state=False)
        learner = learner_of(network(again), world, strategy, seed=7)
        close(trained(learner, feed_of(Points(23), world, 8, 2, STEPS)), reference(23, 8))


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"query": module(batch["x"]), "key": batch["y"]}


def couple(rows: dict[str, Tensor], own: slice = slice(None)) -> dict[str, Tensor]:
    scores = rows["query"] @ rows["key"].T
    return {"match": nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none")[own]}


def both_passes_of_a_coupled_loss_have_the_same_masks(world: World, strategy: str) -> None:
    """By hand it is one pass over the whole batch."""
    for size, batch, micro in SPLITS:
        rows, order = Points(size), Shuffled(size, batch, seed=3)
        now = Progress()
        learner = learner_of(network(), world, strategy, seed=7, step=lambda: now.step)  # noqa: B023
        feed = feed_of(rows, world, batch, micro, STEPS)
        hand = ByHand(network(), decayed=("first.weight", "block.0.weight", "last.weight"))
        key = share_key(hand.module, "model", 7)
        assert key is not None
        for step in range(STEPS):
            ids = order.ids(step)
            full_batch = {**rows.rows(ids[:, 1]), "ids": torch.from_numpy(ids)}
            for _ in range(2):
                with key.updating(step):
                    key.set_batch(full_batch)
                    hand.update(couple(embed(hand.module, full_batch))["match"].mean(), rate(step))
                learner.update_coupled(feed[step], embed, couple)
            now.advance()
        close(weights_of(learner), hand.module.state_dict())


CASES: list[Case] = [
    the_run_is_the_same,
    torchs_own_dropout_is_not,
    what_is_computed_again_is_the_same,
    both_passes_of_a_coupled_loss_have_the_same_masks,
]

test_on_ranks = on_ranks(CASES)
