"""Earlier weights of a learner: a bounded number, used and put back to the bit, the same after a resume."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.data.feed import Feed
from samestep.parallel.wrap import local
from samestep.train.learner.earlier_weights import EarlierWeights
from samestep.train.learner.learner import Learner
from samestep.world.world import World
from toys import Case, Net, Points, default_dtype, error, feed_of, learner_of, made, on_ranks, run_on_ranks, weights_of

KEEP, STEPS = 2, 5


def started(world: World, strategy: str, seed: int = 1) -> tuple[Learner, EarlierWeights, Feed]:
    learner = learner_of(made(Net, seed), world, strategy)
    return learner, EarlierWeights(learner, KEEP), feed_of(Points(13), world, 5, 2, STEPS)


def equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return all(torch.equal(some[name], others[name]) for name in some)


def the_newest_are_kept(world: World, strategy: str) -> None:
    learner, earlier, feed = started(world, strategy)
    taken, hashes = [], []
    for step in range(STEPS):
        assert len(earlier) == min(step, KEEP)
        earlier.take(step)
        taken.append(weights_of(learner))
        hashes.append(earlier.hashes[earlier.steps.index(step)])
        learner.update(feed[step], error)
    assert sorted(earlier.steps) == [STEPS - 2, STEPS - 1]
    assert len(set(hashes)) == STEPS
    own = weights_of(learner)
    for number, step in enumerate(earlier.steps):
        with earlier.in_use(number):
            assert equal(weights_of(learner), taken[step])
        assert equal(weights_of(learner), own)


def they_are_put_back_after_a_failure(world: World, strategy: str) -> None:
    learner, earlier, feed = started(world, strategy)
    earlier.take(0)
    learner.update(feed[0], error)
    own = weights_of(learner)
    with pytest.raises(ZeroDivisionError), earlier.in_use(0):
        raise ZeroDivisionError
    assert equal(weights_of(learner), own)


def other_weights_than_were_kept_are_refused(world: World, strategy: str) -> None:
    _, earlier, _ = started(world, strategy)
    earlier.take(7)
    state = earlier.state_dict()
    earlier.load_state_dict(state)
    with torch.no_grad():
        local(state["copies"]["0"]["last.weight"]).add_(1e-12)
    with pytest.raises(UserError, match="weights of learner 'model' from step 7 are not those that were kept"):
        earlier.load_state_dict(state)


CASES: list[Case] = [
    the_newest_are_kept,
    they_are_put_back_after_a_failure,
    other_weights_than_were_kept_are_refused,
]

test_on_ranks = on_ranks(CASES)


def run_to(folder: Path, strategy: str, first: int) -> None:
    """All steps with a save in their middle; or, in fresh processes, only those after it."""
    world = World.join(device="cpu", timeout=60)
    with default_dtype(torch.float64):
        learner, earlier, feed = started(world, strategy, seed=1 + first)
    state, store = {"model": learner, "earlier": earlier}, Store(folder / "store", world)
    if first:
        found = store.newest()
        assert found is not None
        store.load(found, state)
    for step in range(first, STEPS):
        learner.update(feed[step], error)
        if step != STEPS - 1:
            earlier.take(step)
        if not first and step == 2:
            store.save(step + 1, state, {})
    kept = {}
    for number, step in enumerate(earlier.steps):
        with earlier.in_use(number):
            kept[step] = weights_of(learner)
    if world.is_main:
        torch.save({"kept": kept, "hashes": earlier.hashes}, folder / f"from_{first}.pt")
    world.leave()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resumed_run_has_the_same_ones(strategy: str, tmp_path: Path) -> None:
    for first in (0, 3):
        run_on_ranks(run_to, 2, tmp_path, strategy, first, logs=tmp_path / f"logs_{first}")
    whole, resumed = (torch.load(tmp_path / f"from_{first}.pt") for first in (0, 3))
    assert sorted(whole["kept"]) == sorted(resumed["kept"]) == [2, 3]
    assert all(equal(whole["kept"][step], resumed["kept"][step]) for step in (2, 3))
    assert whole["hashes"] == resumed["hashes"]


def test_keeping_none_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1 earlier state"):
        EarlierWeights(learner_of(made(Net), World.single(), "ddp"), 0)
