"""A recipe whose validation has the mistake that `mistake` names, and changes all that it can reach."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage, Tick, UserError, WholeSet
from train.session.ending import loss, points


@dataclass(frozen=True)
class Settings(Config):
    mistake: str = ""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.calls += 1
        return self.layer(x)


class Validated(Fit):
    """Notes what it found when it began, and changes it."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.mistake = bench, bench.config.mistake
        rows = None if self.mistake == "no rows" else bench.evaluation_feed(points(24))
        whole_set = WholeSet(outputs, two_classes) if self.mistake == "two classes" else None
        super().__init__(bench.learner(Net()), bench.feed(points(40)), loss, validation=rows, whole_set=whole_set)
        self.own = np.random.default_rng(7)
        self.held: dict[str, list[int]] = {"steps": []}

    def validate(self, tick: Tick) -> Any:
        found = [len(self.held["steps"]), float(self.learner.module.calls), self.own.random()]
        found += [torch.rand(()).item(), random.random(), np.random.random(), getattr(self, "first", None)]
        self.held["steps"].append(tick.step)
        self.first = found
        self.bench.log_samples("validated", str(found))
        if self.bench.world.is_main:
            with open("found", "a") as file:
                file.write(f"{found}\n")
        metrics = dict(super().validate(tick))
        if self.mistake == "fillers":
            rows = sum(len(batch["x"]) for step in self.validation or () for batch in step.batches)
            metrics["val/rows"] = float(rows)
        if self.mistake == "seconds on rank 1":
            metrics["val/seconds"] = time.perf_counter() if os.environ.get("RANK") == "1" else 1.0
        fails = self.mistake == "later" or (self.mistake == "on rank 1" and os.environ.get("RANK") == "1")
        if fails and tick.step + 1 == 8 and not Path("repaired").exists():
            raise UserError("the validation is broken")
        return metrics


def outputs(net: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": net(batch["x"])[:, 0] * 0 + batch["x"][:, 0]}


def two_classes(rows: dict[str, Tensor]) -> dict[str, float]:
    assert len(rows["x"]) == 24, "of all rows, also where one batch stands in for them"
    if bool((rows["x"] == rows["x"][0]).all()) or rows["x"].unique().numel() < 24:
        raise ValueError("it takes all rows")
    return {"auc": 0.5}


def stages(config: Any) -> list[Stage]:
    best = {"no val/": ("error", "min"), "never": ("val/f1", "max"), "two classes": ("val/auc", "max")}
    chosen = best.get(config.mistake, ("val/error", "min"))
    return [Stage("fit", Validated, validate=Validated.validate, best=chosen)]


recipe = Recipe(
    config=Settings,
    stages=stages,
    presets={"verify": {"max_steps": 12, "global_batch_size": 10, "batch_size": 3}},
)
