"""A recipe that gets into trouble on demand, for tests of launching."""

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage


@dataclass(frozen=True)
class Trouble(Config):
    """Fit a line, with obstacles."""

    pause: float = 0.0
    """Seconds that a micro-batch takes."""
    stuck: bool = False
    """The second step never ends."""
    room: int = 0
    """Rank 1 has memory for so many rows at once; 0: for all."""
    megabytes: int = 0
    """What a row takes on a GPU that is allowed 1,000."""
    later: bool = False
    """A second stage follows."""


def points(count: int) -> list[dict[str, Tensor]]:
    return [{"x": torch.tensor([index / count])} for index in range(count)]


def build(bench: Bench) -> Fit:
    config: Trouble = bench.config
    calls: list[int] = []
    if config.megabytes:
        total = torch.cuda.get_device_properties(bench.world.device).total_memory
        torch.cuda.set_per_process_memory_fraction(1000 * 2**20 / total)

    def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(len(batch["ids"]))
        if config.room and calls[-1] > config.room and len(calls) > 3 and os.environ.get("RANK") == "1":
            raise torch.OutOfMemoryError(f"no room for {calls[-1]} rows")
        hold = torch.ones(config.megabytes * calls[-1], 2**20, dtype=torch.uint8, device=batch["x"].device)
        time.sleep(60 if config.stuck and len(calls) > 1 else config.pause)
        return {"error": (module(batch["x"]) - 1).square().sum(1) + 0 * hold[:1, :1].sum()}

    return Fit(bench.learner(nn.Linear(1, 1)), bench.feed(points(40)), loss)


def stages(config: Trouble) -> list[Stage]:
    return [Stage("fit", build)] + [Stage("again", build)] * config.later


recipe = Recipe(config=Trouble, stages=stages)
