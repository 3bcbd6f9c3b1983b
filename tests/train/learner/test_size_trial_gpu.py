"""The size of micro-batches on a GPU of which only a part may be used."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samestep.train.learner.size_trial import SizeTrial, sizes_of
from samestep.world.memory import DEVICE_SHARE, DeviceMemory
from samestep.world.world import World
from toys import feed_of, learner_of, made

pytestmark = pytest.mark.gpu
SHARE = 32768
MOST = 4 * 2**30
WIDTH, LAYERS = 4096, 100


class Wide(nn.Module):
    """Keeps about LAYERS * WIDTH floats a row for its backward pass, 1.6 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)
        self.scale = nn.Parameter(torch.ones(LAYERS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for scale in self.scale:
            x = torch.tanh(x * scale)
        return self.last(x)


class Rows:
    def __len__(self) -> int:
        return SHARE

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        return {"x": torch.randn(len(indices), 4)}


def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"error": module(batch["x"]).square().sum(1)}


@pytest.fixture
def small_gpu() -> Iterator[None]:
    """Only MOST bytes of the device may be used by this process."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(MOST / total, 0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def test_the_largest_that_fits_in_the_margin_is_found_and_a_step_passes(small_gpu: None) -> None:
    torch.set_default_dtype(torch.float32)
    world = World.single("cuda")
    learner = learner_of(made(Wide), world, "lone")
    memory = DeviceMemory(world.device)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        assert memory.limit <= DEVICE_SHARE * MOST * 1.01
    memory.limit = min(memory.limit, DEVICE_SHARE * MOST)
    weights = {name: value.clone() for name, value in learner.weights().items()}
    learner.size_trial = trial = SizeTrial(world, memory, SHARE)
    feed = feed_of(Rows(), world, SHARE, 8, steps=1)
    random = torch.cuda.get_rng_state()
    with feed.one_row():
        learner.update(feed[0], loss)
    learner.size_trial = None
    assert all(torch.equal(value, weights[name]) for name, value in learner.weights().items())
    assert torch.equal(torch.cuda.get_rng_state(), random)

    def most_of(rows: int) -> int:
        feed.cut_into(rows)
        return memory.most_used(lambda: learner.update(feed[0], loss))

    assert trial.rows < SHARE, "the share does not fit"
    assert most_of(trial.rows) <= memory.limit, "a real step takes no more than was measured"
    larger = min(size for size in sizes_of(SHARE) if size > trial.rows)
    with suppress(torch.OutOfMemoryError):  # it may be too much for the device, and not for its limit alone
        assert most_of(larger) > 0.97 * memory.limit, "and the next larger size takes more, but for rounding"
    feed.cut_into(SHARE)
    with pytest.raises(torch.OutOfMemoryError):
        learner.update(feed[0], loss)
