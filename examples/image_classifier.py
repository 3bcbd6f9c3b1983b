"""Classify images of digits by a small network with BatchNorm: the same run at any number of ranks. Try it with

samestep train examples/image_classifier.py
torchrun --nproc_per_node=2 -m samestep train examples/image_classifier.py
samestep verify examples/image_classifier.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Fit, Recipe, Stage, global_batch_norm

DIGITS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Five rows of three pixels each: 5 is 101."""


@dataclass(frozen=True)
class Digits(Config):
    """Classify images of digits."""

    channels: int = 16
    """Channels of the first layer; the second has twice as many."""
    norm_rows: int = 16
    """Rows of the global batch that are normalised together."""


class Images:
    """Digits at random places, under noise; an image depends on its number alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        digit, top, left = (int(torch.randint(most, (), generator=random)) for most in (10, 4, 6))
        image = 0.25 * torch.randn(1, 8, 8, generator=random)
        image[0, top : top + 5, left : left + 3] += torch.tensor(
            [[float(bit) for bit in f"{int(row):03b}"] for row in DIGITS[digit]]
        )
        return {"image": image, "digit": torch.tensor(digit)}


def network(config: Digits) -> nn.Module:
    wide = 2 * config.channels
    layers = [  # without biases, which a batch norm would take out again
        *(nn.Conv2d(1, config.channels, 3, padding=1, bias=False), nn.BatchNorm2d(config.channels), nn.ReLU()),
        *(nn.Conv2d(config.channels, wide, 3, stride=2, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(9 * wide, 10)),
    ]
    return global_batch_norm(nn.Sequential(*layers), rows=config.norm_rows)


def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"nll": nn.functional.cross_entropy(model(batch["image"]), batch["digit"], reduction="none")}


def measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    scores = model(batch["image"])
    right = (scores.argmax(1) == batch["digit"]).to(scores.dtype)
    return {"nll": nn.functional.cross_entropy(scores, batch["digit"], reduction="none"), "accuracy": right}


def build(bench: Bench) -> Fit:
    feed, validation = bench.feed(Images(4000, seed=1)), bench.evaluation_feed(Images(500, seed=2))
    return Fit(bench.learner(network(bench.config)), feed, loss, validation=validation, measure=measure)


default = {"global_batch_size": 64, "batch_size": 64, "epochs": 4, "learning_rate": 0.01}
small = {"channels": 2, "norm_rows": 2, "global_batch_size": 10, "batch_size": 4, "max_steps": 8}
recipe = Recipe(
    config=Digits,
    stages=lambda config: [Stage("train", build, validate=Fit.validate, best=("val/nll", "min"))],
    presets={"default": default, "verify": small},
)
