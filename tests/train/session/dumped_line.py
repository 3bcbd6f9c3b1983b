"""A recipe that tests of stages write into a folder of their own: a dump, a fit of what was dumped, and another fit."""

SOURCE = '''
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from samestep import Bench, Config, Dump, Fit, Recipe, Stage


@dataclass(frozen=True)
class Line(Config):
    """Fit a line to the squares of the numbers in a file."""

    fit_lr: float = 0.01
    """Learning rate of the stage fit."""
    last_lr: float = 0.02
    """Learning rate of the stage last."""
    fit_batch: int = 4
    """Rows per step of the stage fit."""


class Numbers:
    def __init__(self) -> None:
        self.read = np.loadtxt("numbers.txt")

    def __len__(self) -> int:
        return len(self.read)

    def __getitem__(self, index: int) -> dict:
        return {"x": torch.tensor([self.read[index]], dtype=torch.get_default_dtype())}

    def origins(self) -> list:
        return [Path("numbers.txt")]


class Killed(Dump):
    """Every rank kills itself in the middle of a step: after it wrote its first micro-batch of it."""

    def step(self, tick):
        self.dies = str(tick.step) == os.environ.get("KILL_AT")
        return super().step(tick)


def dump(bench: Bench) -> Dump:
    rows = Numbers()
    outputs = bench.array_artifact("squares", len(rows), {"x": ((1,), "float32"), "y": ((1,), "bfloat16")})
    with bench.write_artifact("count.json") as path:
        path.write_text(str(len(rows)))

    def compute(batch):
        if task.dies and task.computed:
            os.kill(os.getpid(), signal.SIGKILL)
        task.computed = task.dies
        return {"x": batch["x"], "y": batch["x"].square()}

    task = Killed(bench.evaluation_feed(rows), compute, outputs)
    task.computed = False
    return task


def loss(module, batch):
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def fit(bench: Bench) -> Fit:
    rows = bench.read_array_artifact("squares", stage="dump")
    return Fit(bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss, validation=bench.evaluation_feed(rows))


recipe = Recipe(
    Line,
    lambda config: [
        Stage("dump", dump, ignores=("*_lr", "fit_batch")),
        Stage(
            "fit",
            fit,
            validate=Fit.validate,
            best=("val/error", "min"),
            config=lambda c: replace(c, learning_rate=c.fit_lr, global_batch_size=c.fit_batch, epochs=2),
            ignores=("last_lr",),
        ),
        Stage(
            "last",
            fit,
            start="fit:best",
            config=lambda c: replace(c, learning_rate=c.last_lr, schedule="constant", max_steps=3),
        ),
    ],
)
'''

ROWS = 43
SETTINGS = [
    *("--global_batch_size", "7", "--batch_size", "2", "--log.every", "1", "--no-log.tensorboard"),
    *("--checkpoint.every_steps", "2", "--distributed.device", "cpu"),
]
"""The dump has 7 steps of 7 rows, the last of one row; saves are at every second step."""
