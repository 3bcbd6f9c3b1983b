"""Averaged weights: the average that the formula says at any split, used by validation, restored to the bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.parallel.wrap import full_tensor
from samestep.train.api.fit import Fit
from samestep.train.learner.ema import Average
from samestep.train.record.progress import Tick
from samestep.world.world import World
from toys import (
    NOT_SHARDED,
    Case,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_order,
    in_worlds,
    learner_of,
    made,
    on_ranks,
    run_on_ranks,
    weights_of,
)

DECAY = 0.6
STEPS = 9


def task_of(world: World, strategy: str, decay: float = DECAY, seed: int = 1) -> Fit:
    rows = Points(13)
    learner = learner_of(made(Net, seed), world, strategy)
    return Fit(
        learner,
        feed_of(rows, world, 5, 2, STEPS),
        error,
        validation=feed_of(rows, world, 13, 4, 1, order=in_order(rows, 13)),
        average=Average(learner, decay),
    )


def averaged(task: Fit) -> dict[str, Tensor]:
    assert task.average is not None
    return {name: full_tensor(value).clone() for name, value in task.average.state_dict()["model"].items()}


def it_is_the_average_of_all_weights_so_far(world: World, strategy: str) -> None:
    task = task_of(world, strategy)
    wanted = weights_of(task.learner)
    for step in range(STEPS):
        task.step(Tick(step, 0, False))
        decay = min(DECAY, (2 + step) / (11 + step))
        own = weights_of(task.learner)
        wanted = {name: decay * value + (1 - decay) * own[name] for name, value in wanted.items()}
        close(averaged(task), wanted)
    assert any(not torch.equal(wanted[name], own[name]) for name in wanted)


def validation_measures_it_and_leaves_no_trace(world: World, strategy: str) -> None:
    task = task_of(world, strategy)
    for step in range(STEPS):
        task.step(Tick(step, 0, False))
    own, average = weights_of(task.learner), averaged(task)
    module, points = made(Net), Points(13)
    module.load_state_dict(average)
    with torch.no_grad():
        wanted = float((module(points.x, points.tokens) - points.y).square().sum(1).mean())
    assert task.validate(Tick(STEPS, 0, True)) == {"val/error": pytest.approx(wanted, rel=1e-12)}
    for before, after in ((own, weights_of(task.learner)), (average, averaged(task))):
        assert all(torch.equal(before[name], after[name]) for name in before)


@in_worlds(NOT_SHARDED)  # a sharded one casts its weights as it gathers them
def it_is_put_in_use_before_weights_are_cast(world: World, strategy: str) -> None:
    with default_dtype(torch.float32):
        learner = learner_of(made(Net), world, strategy, mixed_precision="bf16")
    average = Average(learner, DECAY)
    with average.in_use(), learner.inference():
        pass
    with learner.inference(), pytest.raises(UserError, match=r"before learner\.inference"), average.in_use():
        pass


CASES: list[Case] = [
    it_is_put_in_use_before_weights_are_cast,
    it_is_the_average_of_all_weights_so_far,
    validation_measures_it_and_leaves_no_trace,
]

test_on_ranks = on_ranks(CASES)


def run_to(folder: Path, strategy: str, first: int) -> None:
    """All steps with a save in their middle; or, in fresh processes, only those after it."""
    world = World.join(device="cpu", timeout=60)
    with default_dtype(torch.float64):
        task = task_of(world, strategy, seed=1 + first)
    store = Store(folder / "store", world)
    if first:
        found = store.newest()
        assert found is not None
        store.load(found, task.state)
    for step in range(first, STEPS):
        task.step(Tick(step, 0, False))
        if not first and step == 3:
            store.save(step + 1, task.state, {})
    average = averaged(task)
    if world.is_main:
        torch.save(average, folder / f"from_{first}.pt")
    world.leave()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resumed_average_is_the_same_to_the_bit(strategy: str, tmp_path: Path) -> None:
    for first in (0, 4):
        run_on_ranks(run_to, 2, tmp_path, strategy, first, logs=tmp_path / f"logs_{first}")
    whole_run, resumed = (torch.load(tmp_path / f"from_{first}.pt") for first in (0, 4))
    assert all(torch.equal(whole_run[name], resumed[name]) for name in whole_run)


@pytest.mark.parametrize("decay", [-0.1, 0.0, 1.0])
def test_a_decay_outside_of_0_to_1_is_refused(decay: float) -> None:
    with pytest.raises(UserError, match="above 0 and below 1"):
        Average(learner_of(made(Net), World.single(), "ddp"), decay)
