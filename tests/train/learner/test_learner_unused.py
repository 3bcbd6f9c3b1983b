"""A parameter without a gradient is named before DDP would fail on it."""

from pathlib import Path

import pytest
from torch import Tensor, nn

from samestep.core.errors import RunFailed
from samestep.launching import local
from samestep.world.world import World
from toys import Points, feed_of, learner_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x).squeeze(1)


def update_once() -> None:
    world = World.join(device="cpu")
    learner = learner_of(Net(), world, "ddp")
    with pytest.raises(RunFailed, match=r"2 parameters .* the first of them 'idle.weight'"):
        learner.update(feed_of(Points(8), world, 4, 4, steps=2)[0], lambda module, batch: {"error": module(batch["x"])})


@pytest.mark.timeout(900)
def test_it_is_named(tmp_path: Path) -> None:
    workers = local.start(update_once, 2, logs=tmp_path)
    assert workers.wait(40) == [0, 0], workers.output(0)
