"""Whether a step has changed the state; if not, it is put back to the step's beginning."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from samestep.train.record.progress import Tick
from samestep.train.record.stop import Stop
from samestep.train.session.hooks.step_start import StepStart
from samestep.world.seeding import RandomState
from samestep.world.world import World
from toys import Net, Points, feed_of, learner_of, made


class Memory:
    """A state of the task's own."""

    def __init__(self) -> None:
        self.number, self.tensor, self.own = 0, torch.zeros(3), 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing is loaded")

    def rank_state(self) -> int:
        return self.own

    def load_rank_state(self, states: list[int]) -> None:
        raise AssertionError("nothing is loaded")


def change(memory: Memory, what: str) -> None:
    if what == "tensor":
        memory.tensor[1] += 1
    else:
        setattr(memory, what, 1)


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


@pytest.mark.parametrize("changed", ["", "number", "tensor", "own", "learner"])
def test_only_an_unchanged_state_is_put_back(changed: str) -> None:
    world = World.single()
    learner, memory, generators = learner_of(made(Net), world, "ddp"), Memory(), RandomState(world, 3)
    feed = feed_of(Points(8), world, 8, 4, steps=2)
    stop = Stop(world)
    hook = StepStart(stop, {"model": learner, "memory": memory, "random": generators}, generators, world)

    def update() -> None:
        with torch.random.fork_rng():
            learner.update(feed[0], lambda module, batch: {"e": module(batch["x"], batch["tokens"]).sum(1)})

    hook.after_step(Tick(0, 0, False), {}, False)
    assert not hook.restore(), "no step has checked for a stop so far"
    stop.is_checked_inside = True
    update()
    hook.after_step(Tick(1, 0, False), {}, False)
    first = drawn()
    with learner.inference() as module:
        module(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
    if changed == "learner":
        update()
    elif changed:
        change(memory, changed)
    assert hook.restore() is not bool(changed)
    assert (drawn() == first) is not bool(changed)
