"""A recipe whose first stage writes the data that its second stage trains on."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage, Tick

SIZE = 24


@dataclass(frozen=True)
class TwoStages(Config):
    """Dump squares, then fit them."""

    batch_size: int = 4
    """Rows a rank takes at once."""


class Dump:
    """Writes all rows in one step."""

    def __init__(self, bench: Bench) -> None:
        self.length, self.state = 1, dict[str, object]()
        self._path, self._world = bench.artifact("squares.npy"), bench.world

    def step(self, tick: Tick) -> dict[str, float]:
        if self._world.is_main:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            np.save(self._path, np.linspace(-1, 1, SIZE, dtype=np.float32) ** 2)
        return {}


def build(bench: Bench) -> Fit:
    squares = torch.from_numpy(np.load(bench.artifact("squares.npy", stage="dump")))
    rows = [{"x": torch.linspace(-1, 1, SIZE)[at][None], "y": squares[at][None]} for at in range(SIZE)]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}

    return Fit(bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss)


recipe = Recipe(TwoStages, lambda config: [Stage("dump", Dump), Stage("train", build)])
