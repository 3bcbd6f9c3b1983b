"""What the planted recipes are made of: sound pieces, each recipe then spoils one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Small(Config):
    """A small recipe."""

    learning_rate: float = 0.02


VERIFY = {"max_steps": 6, "global_batch_size": 7, "batch_size": 3}


def points(count: int) -> list[dict[str, Tensor]]:
    """Points on a wave."""
    x = torch.linspace(-3, 3, count, dtype=torch.float64)[:, None]
    return [{"x": a, "y": b} for a, b in zip(x, x.sin())]


def net() -> nn.Module:
    """A few parameters."""
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))


def error(module: nn.Module, batch: Batch) -> Tensor:
    """Each row's squared error."""
    return (module(batch["x"]) - batch["y"]).square().sum(1)


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """As it should be: one value a row."""
    return {"error": error(module, batch)}


def fit(
    bench: Bench,
    loss: Callable[..., Any] = loss,
    count: Callable[..., Any] | None = None,
    module: nn.Module | None = None,
) -> Fit:
    """The sound task, with another loss or count."""
    feed = bench.feed(points(40), count=count)
    return Fit(bench.learner(module or net()), feed, loss, validation=bench.evaluation_feed(points(11)))


def recipe_of(
    build: Callable[[Bench], Any], validate: Callable[..., Any] = Fit.validate, unused: Sequence[str] = ()
) -> Recipe:
    """A recipe of one stage."""
    stage = Stage("fit", build, validate=validate)
    return Recipe(config=Small, stages=lambda config: [stage], presets={"verify": VERIFY}, unused=unused)
