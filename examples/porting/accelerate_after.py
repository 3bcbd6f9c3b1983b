"""The script of accelerate_before.py on any number of devices, resumable: samestep train accelerate_after.py"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import Batch, Bench, Config, Fit, Recipe, Stage


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def points() -> list[Batch]:
    at = 2 * torch.rand(121, 2, generator=torch.Generator().manual_seed(0)) - 1
    return [{"x": x, "y": y} for x, y in zip(at, (at.norm(dim=1) < 0.8).long())]


def build(bench: Bench) -> Fit:
    rows = points()
    held_out = bench.evaluation_feed(rows[90:])
    return Fit(bench.learner(network()), bench.feed(rows[:90]), loss, validation=held_out, measure=measure)


def loss(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"loss": cross_entropy(net(batch["x"]), batch["y"], reduction="none")}  # one value a row


def measure(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"accuracy": (net(batch["x"]).argmax(1) == batch["y"]).float()}  # one value a row; each row counts once


as_before = {"batch_size": 5, "global_batch_size": 10, "epochs": 3, "learning_rate": 0.01, "schedule": "constant"}
recipe = Recipe(
    config=Config,
    stages=lambda config: [Stage("train", build, validate=Fit.validate, best=("val/accuracy", "max"))],
    presets={"default": as_before | {"weight_decay": 0.0, "beta2": 0.999}, "verify": as_before | {"batch_size": 3}},
)
