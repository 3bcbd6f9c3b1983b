"""A user's recipe in which one rank does not do what the others do, because of an `if` that depends on the rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Metrics, Recipe, Stage, Tick, evaluate
from samestep.core.config import free

NAME = "faults.uneven"
ODD_RANK = 1
ODD_STEPS = {"leaves_out": 9, "adds": 9, "validates": 5, "in_hook": 5}
"""Rows of metrics are written every 10 steps, for which ranks wait: so different updates at step 9 make them hang."""
POSITIONS = [torch.tensor([index / 50.0]) for index in range(400)]
ROWS = [{"x": x, "y": x.sin()} for x in POSITIONS]


@dataclass(frozen=True)
class UnevenConfig(Config):
    """What rank 1 does that rank 0 does not."""

    fault: str = free("")
    """leaves_out (an update), adds (an update), validates or in_hook (validates there)."""


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}


class Uneven:
    """One learner, and a rank that leaves the common way."""

    def __init__(self, bench: Bench) -> None:
        self.world, self.fault = bench.world, bench.config.fault
        self.feed, self.validation = bench.feed(ROWS), bench.evaluation_feed(ROWS[:40])
        self.learner = bench.learner(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
        self.length, self.state = self.feed.length, {"model": self.learner}

    def is_odd(self, tick: Tick, fault: str) -> bool:
        return self.fault == fault and self.world.rank == ODD_RANK and tick.step == ODD_STEPS[fault]

    def step(self, tick: Tick) -> Metrics:
        if self.is_odd(tick, "leaves_out"):
            return {}
        metrics = self.learner.update(self.feed[tick.step], loss)  # line: leaves_out
        if self.is_odd(tick, "adds"):
            self.learner.update(self.feed[tick.step], loss)  # line: adds
        if self.is_odd(tick, "validates"):
            evaluate(self.learner, self.validation, loss)  # line: validates
        return metrics


@dataclass
class OddHook:
    """Runs on every rank after each step."""

    task: Uneven

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        if self.task.is_odd(tick, "in_hook"):
            evaluate(self.task.learner, self.task.validation, loss)  # line: in_hook


def hooks(task: Uneven, bench: Bench) -> Sequence[OddHook]:
    return [OddHook(task)]


recipe = Recipe(config=UnevenConfig, stages=lambda config: [Stage("fit", Uneven, hooks=hooks)])
