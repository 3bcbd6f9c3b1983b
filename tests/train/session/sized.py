"""A recipe whose loss has memory for so many rows as `MOST_ROWS` says of each rank; the rows it gets are written down.

It draws from torch's generators, has statistics of batches, and averaged weights: traces of a trial would show.
"""

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Average, Bench, Config, Fit, Recipe, Stage
from samestep.train.session import batch_size
from train.session.ending import points


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rank, count = int(os.environ.get("RANK", "0")), len(batch["x"])
    if module.training:
        with Path(f"rows_{rank}").open("a") as file:
            file.write(f"{count}\n")
    if count > int(os.environ["MOST_ROWS"].split(",")[rank]):
        raise torch.OutOfMemoryError("simulated")
    return {"error": (module(batch["x"])[:, 0] - batch["y"][:, 0]).square()}


def build(bench: Bench) -> Fit:
    learner = bench.learner(net())
    rows = bench.evaluation_feed(points(8))
    return Fit(learner, bench.feed(points(64)), loss, validation=rows, average=Average(learner, decay=0.9))


if os.environ.get("NO_MEMORY_ON") == os.environ.get("RANK", "0"):  # a system that does not tell
    batch_size.memory_of = lambda world: None  # type: ignore[assignment]
recipe = Recipe(
    config=Config,
    stages=lambda config: [Stage("fit", build, validate=Fit.validate)],
    presets={"verify": {"max_steps": 4, "global_batch_size": 24, "epochs": 2}},
)
