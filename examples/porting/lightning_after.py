"""The script of lightning_before.py on any number of devices, resumable: samestep train lightning_after.py"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import Batch, Bench, Config, Fit, Recipe, Stage


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def points() -> list[Batch]:
    at = 2 * torch.rand(121, 2, generator=torch.Generator().manual_seed(0)) - 1
    return [{"x": x, "y": y} for x, y in zip(at, (at.norm(dim=1) < 0.8).long())]


def build(bench: Bench) -> Fit:  # what was around the LightningModule: its network, its data, its two steps
    rows = points()
    held_out = bench.evaluation_feed(rows[90:])
    return Fit(bench.learner(network()), bench.feed(rows[:90]), training, validation=held_out, measure=validation)


def training(net: nn.Module, batch: Batch) -> dict[str, Tensor]:  # training_step
    return {"loss": cross_entropy(net(batch["x"]), batch["y"], reduction="none")}  # one value a row; no self.log


def validation(net: nn.Module, batch: Batch) -> dict[str, Tensor]:  # validation_step
    logits = net(batch["x"])
    right = (logits.argmax(1) == batch["y"]).float()
    return {"loss": cross_entropy(logits, batch["y"], reduction="none"), "accuracy": right}


# configure_optimizers and the Trainer's arguments are settings
steps = {"batch_size": 5, "global_batch_size": 10, "epochs": 3, "early_stopping": 3, "log": {"every": 1}}
optimizer = {"learning_rate": 0.01, "schedule": "cosine", "weight_decay": 0.0, "beta2": 0.999, "clip": 1.0}
recipe = Recipe(
    config=Config,
    stages=lambda config: [Stage("train", build, validate=Fit.validate, best=("val/loss", "min"))],  # ModelCheckpoint
    presets={"default": steps | optimizer, "verify": steps | optimizer | {"batch_size": 3}},
)
