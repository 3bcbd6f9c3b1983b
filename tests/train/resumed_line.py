"""A recipe that tests of resuming write into a folder of their own: its data and its code can then be changed."""

SOURCE = '''
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import line_loss
from samestep import Bench, Config, Fit, Recipe, Stage


@dataclass(frozen=True)
class Line(Config):
    """Fit a line to the rows of a file."""

    augment: str = "none"
    """none; generator: rows are spoilt by a generator that nobody seeds; torch: by torch's; keyed: by torch's, seeded
    for each row."""


class Rows:
    def __init__(self, path: str, augment: str) -> None:
        self.rows_read = json.loads(Path(path).read_text())
        self.random = np.random.default_rng() if augment == "generator" else None
        self.augments = augment in ("torch", "keyed")

    def __len__(self) -> int:
        return len(self.rows_read)

    def __getitem__(self, index: int) -> dict:
        row = self.rows_read[index]
        if row["x"] == "unreadable":
            raise OSError(f"row {index} cannot be read")
        shift = self.random.normal() if self.random else float(torch.randn(())) if self.augments else 0.0
        return {"x": torch.tensor([row["x"] + shift]), "y": torch.tensor([row["y"]])}


class Failing(Fit):
    def step(self, tick):
        if os.environ.get("FAILS_AT") == str(tick.step):
            raise RuntimeError(f"step {tick.step} failed")
        return super().step(tick)


def build(bench: Bench) -> Fit:
    augment = bench.config.augment
    feed = bench.feed(Rows("rows.json", augment), keyed_random=augment == "keyed")
    validation = bench.evaluation_feed(Rows("held.json", "none"))
    return Failing(bench.learner(nn.Linear(1, 1)), feed, line_loss.loss, validation=validation)


recipe = Recipe(Line, lambda config: [Stage("fit", build, validate=Fit.validate)])
'''

LOSS = """
def loss(module, batch):
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}
"""

ARGS = [
    *("train", "line.py", "--name", "a", "--max_steps", "8", "--global_batch_size", "4", "--batch_size", "2"),
    *("--log.every", "1", "--no-log.tensorboard", "--checkpoint.every_steps", "2", "--checkpoint.every_epochs", "0"),
    "--no-checkpoint.background",
]
"""Saves fall on steps 2, 4, 6 and 8."""
