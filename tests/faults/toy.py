"""The recipe of the fault suite: a few steps of a few milliseconds, with faults that can be switched on.

The faults do not affect the results, so a resume without them must end in the same bits as a run that never had any.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage, Tick
from samestep.core.config import free

Batch = dict[str, Tensor]
NAME = "faults.toy"
STEPS = 12
LAST_GOOD_ROW = 24
"""How many rows a rank loads before its data raises: more than the first saves need, fewer than the run does."""


@dataclass(frozen=True)
class Toy(Config):
    """A small network on a sine wave."""

    step_delay: float = free(0.0)
    """Seconds that every loss takes longer, so that a random moment falls into a step."""
    trouble: str = free("")
    """What goes wrong: raise, nan, nan_once, sigterm_building or sigterm_validating."""
    at_rank: int = free(0)
    """The rank on which it goes wrong."""


class Points:
    """Rows of a sine wave; with `raises`, those after the first `LAST_GOOD_ROW` cannot be loaded."""

    def __init__(self, count: int, raises: bool = False) -> None:
        x = torch.linspace(-3, 3, count, dtype=torch.float64)[:, None]
        self._rows = [{"x": a, "y": b} for a, b in zip(x, x.sin())]
        self._raises, self._loaded = raises, 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        self._loaded += 1
        if self._raises and self._loaded > LAST_GOOD_ROW:
            raise OSError(f"row {index} cannot be read")
        return self._rows[index]


class ToyFit(Fit):
    """A `Fit` that may send itself SIGTERM during validation."""

    interrupted = False

    def validate(self, tick: Tick) -> Mapping[str, float]:
        if self.interrupted and self.learner.updates and tick.step < STEPS // 2:  # not while it is only tried
            os.kill(os.getpid(), signal.SIGTERM)
        return super().validate(tick)


def build(bench: Bench) -> ToyFit:
    config: Toy = bench.config
    trouble = config.trouble if bench.world.rank == config.at_rank else ""
    if trouble == "sigterm_building":
        os.kill(os.getpid(), signal.SIGTERM)

    def error(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}

    def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        time.sleep(config.step_delay)
        rows = error(model, batch)["error"]
        epoch, index = batch["ids"].unbind(1)
        if trouble == "nan":
            rows = rows * torch.nan
        if trouble == "nan_once":
            rows = rows * torch.where((epoch == 1) & (index < 8), torch.nan, 1.0)
        return {"error": rows}

    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    feed = bench.feed(Points(30, raises=trouble == "raise"))
    fit = ToyFit(bench.learner(net), feed, loss, validation=bench.evaluation_feed(Points(10)), measure=error)
    fit.interrupted = trouble == "sigterm_validating"
    return fit


def settings(out: Path, **changes: Any) -> dict[str, Any]:
    """The configuration of all runs of the suite; saves and logged metrics fall on different steps."""
    return {
        "out": str(out),
        "max_steps": STEPS,
        "batch_size": 3,
        "global_batch_size": 7,
        "learning_rate": 0.02,
        "validate_every": 5,
        "evidence": True,
        "distributed": {"dtype": "float64", "device": "cpu", "backend": "gloo", "timeout": 60.0},
        "checkpoint": {"every_steps": 2, "every_epochs": 0, "keep_last": 3},
        "log": {"every": 3, "quiet": True, "tensorboard": False},
        **changes,
    }


recipe = Recipe(
    config=Toy, stages=lambda config: [Stage("fit", build, validate=ToyFit.validate, best=("val/error", "min"))]
)
