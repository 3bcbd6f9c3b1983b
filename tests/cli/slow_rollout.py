"""A recipe whose fourth step takes a minute while there is a file `slow`, and checks for a stop all along."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Recipe, Stage, Tick
from samestep.train.logging.metrics import Metrics


@dataclass(frozen=True)
class Slow(Config):
    """Fit a line to its own rollouts."""

    early: bool = False
    """The learner is also updated before the rollout."""


class Rollouts:
    def __init__(self, bench: Bench) -> None:
        self.feed = bench.feed([{"x": torch.tensor([index / 40])} for index in range(40)])
        self.bench, self.length = bench, self.feed.length
        self.learner = bench.learner(nn.Linear(1, 1))
        self.state = {"model": self.learner}

    def step(self, tick: Tick) -> Metrics:
        prompts = self.feed[tick.step]
        if self.bench.config.early:
            self.learner.update(prompts, lambda module, batch: {"line": module(batch["x"]).sum(1)})

        def make(batch: dict[str, Tensor]) -> Mapping[str, Tensor]:
            y = batch["x"] + torch.rand(1)  # a rank's own generator: it must be put back
            end = time.monotonic() + 60
            while tick.step == 3 and Path("slow").exists() and time.monotonic() < end:
                Path(f"inside_{self.bench.world.rank}").touch()
                time.sleep(0.01)
                try:
                    self.bench.check_stop()
                except Exception as error:
                    raise AssertionError("a stop is no failure, which a recipe may handle") from error
            self.bench.check_stop()
            return {"x": batch["x"], "y": y}

        rollout = self.bench.produced(prompts, make, copies=2)
        return self.learner.update(
            rollout, lambda module, batch: {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}
        )


recipe = Recipe(config=Slow, stages=lambda config: [Stage("fit", Rollouts)])
