"""The loop of before.py on any number of devices, resumable: samestep train examples/after.py"""

import torch
from torch import nn

from samestep import Batch, Bench, Config, Fit, Recipe, Stage


def points() -> list[Batch]:
    x = torch.linspace(-3, 3, 1000)[:, None]
    return [{"x": a, "y": b} for a, b in zip(x, x.sin())]


def loss(net: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    return {"error": (net(batch["x"]) - batch["y"]).square().sum(1)}  # one value a row; the mean is taken for you


def build(bench: Bench) -> Fit:
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    return Fit(bench.learner(net), bench.feed(points()), loss, validation=bench.evaluation_feed(points()))


default = {"global_batch_size": 50, "batch_size": 50, "epochs": 20, "learning_rate": 0.01, "schedule": "constant"}
small = {"global_batch_size": 10, "batch_size": 3, "max_steps": 6}
recipe = Recipe(
    config=Config,
    stages=lambda config: [Stage("train", build, validate=Fit.validate, best=("val/error", "min"))],
    presets={"default": default, "verify": small},
)
