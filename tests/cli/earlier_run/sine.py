"""A recipe of your own: fit a noisy sine wave. Try it with

samestep train examples/sine.py --epochs 5
torchrun --nproc_per_node=2 -m samestep train examples/sine.py
samestep verify examples/sine.py
"""

from dataclasses import dataclass

import torch
from torch import nn

from samestep import Bench, Config, Fit, Recipe, Stage, noise

WOBBLE = noise.purpose("wobble")


@dataclass(frozen=True)
class Sine(Config):
    """Fit a sine wave."""

    hidden: int = 32
    """Width of the hidden layer."""
    wobble: float = 0.1
    """Size of the noise on the inputs."""


def points(count: int) -> list[dict[str, torch.Tensor]]:
    x = torch.linspace(-3, 3, count)[:, None]
    return [{"x": a, "y": b} for a, b in zip(x, x.sin())]


def build(bench: Bench) -> Fit:
    config: Sine = bench.config

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        epoch, index = batch["ids"].unbind(1)  # noise is a function of the sample, not of the rank
        shift = config.wobble * (noise.uniform(config.seed, WOBBLE, epoch, index) - 0.5)
        return {"error": (model(batch["x"] + shift[:, None]) - batch["y"]).square().sum(1)}  # one value a row

    net = nn.Sequential(nn.Linear(1, config.hidden), nn.Tanh(), nn.Linear(config.hidden, 1))
    return Fit(bench.learner(net), bench.feed(points(1000)), loss, validation=bench.rows_once(points(101)))


recipe = Recipe(
    config=Sine,
    stages=lambda config: [Stage("fit", build, validate=Fit.validate, best=("val/error", "min"))],
    presets={"verify": {"hidden": 4, "max_steps": 8, "global_batch_size": 10, "batch_size": 3}},
)
