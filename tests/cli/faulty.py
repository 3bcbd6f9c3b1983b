"""A recipe whose data is bad from a chosen sample on, for tests of the messages that users get."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage


@dataclass(frozen=True)
class Faulty(Config):
    """Fit a line to data with a fault."""

    nan_rows: int = 0
    """So many of the 30 rows are not numbers."""
    broken_row: int = -1
    """Reading this row raises."""


class Points:
    def __init__(self, config: Faulty) -> None:
        self.config = config

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == self.config.broken_row:
            raise RuntimeError(f"row {index} is unreadable")
        return {"x": torch.full((1,), float("nan") if index < self.config.nan_rows else index / 30)}


def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - 1).square().sum(1)}


def build(bench: Bench) -> Fit:
    return Fit(bench.learner(nn.Linear(1, 1)), bench.feed(Points(bench.config)), loss)


recipe = Recipe(config=Faulty, stages=lambda config: [Stage("fit", build)])
