"""What code of a recipe changes while it is only tried is put back."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from samestep.train.session.unchanged import unchanged
from samestep.world.seeding import RandomState
from samestep.world.world import World
from toys import Net, learner_of, made


class Part:
    def __init__(self) -> None:
        self.tensor, self.large = torch.zeros(3), torch.zeros(2**19)
        self.array, self.numbers, self.recent = np.zeros(3), {"a": [1]}, deque([1, 2])
        self.generators = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.held: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"large": self.large}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def drawn(self) -> list[float]:
        own, numpy_own, python_own = self.generators
        drawn = [torch.rand((), generator=own).item(), numpy_own.random(), python_own.random()]
        return [*drawn, torch.rand(()).item(), np.random.random(), random.random()]

    def change(self) -> None:
        self.tensor += 1
        self.large += 1
        self.array += 1
        self.numbers["a"].append(2)
        self.numbers["b"] = []
        self.recent.append(3)
        self.held.late = "new"
        self.numbers, self.held = {}, None
        self.added = 1


def test_everything_that_a_part_holds_is_put_back() -> None:
    world = World.single()
    outer, inner = Part(), Part()
    network = nn.BatchNorm1d(2)
    learner = learner_of(made(Net), world, "ddp")
    learner.module.register_buffer("seen", torch.zeros(()))
    outer.held, inner.held = inner, SimpleNamespace(x=1)
    inner.numbers["self"] = inner  # a circle
    state, random_state = RandomState(world, 1), RandomState(world, 1)
    state.seed_this_rank()
    with unchanged([outer, network, {"learner": learner}], [inner], random_state):
        first = outer.drawn() + inner.drawn()
        network(torch.randn(4, 2))
        learner.module.seen += 1
        inner.change()
        outer.held = inner
        outer.change()
    assert outer.drawn() + inner.drawn() == first
    for part in (outer, inner):
        assert not part.tensor.any() and not part.array.any() and part.recent == deque([1, 2])
        assert part.numbers["a"] == [1] and "b" not in part.numbers and not hasattr(part, "added")
    assert outer.held is inner and inner.numbers["self"] is inner
    assert not inner.large.any(), "a checkpoint holds it, however large it is"
    assert network.num_batches_tracked == 0 and not network.running_mean.any() and not learner.module.seen
