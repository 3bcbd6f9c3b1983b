"""What a lens is compared with: the mean of the training activations, and the linear lens.

The linear lens is the logit lens turned around without a trained decoder or encoder: the model's own last norm and head
name the T likeliest tokens of an activation, and a ridge regression, fitted on training activations, rebuilds it from
the mean embedding of those.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep import Batch, World
from samestep.recipes.lens.distributions import wide
from samestep.recipes.lens.held_out import SpreadRows, compute_rows
from samestep.recipes.lens.network import What

Ask = Callable[[Batch, What], dict[str, Tensor]]
"""Calls a lens without gradients."""
RIDGE = 1e-3
"""The penalty of the regression, as a share of the features' mean variance."""


@dataclass(frozen=True)
class Baselines:
    """What was learned from training activations."""

    mean: Tensor
    """Of the activations [width]."""
    weight: Tensor
    """[width, width]: from features of the logit lens to activations."""
    bias: Tensor

    def linear(self, features: Tensor) -> Tensor:
        """The activations [rows, width] that the linear lens rebuilds."""
        return features.to(self.weight.dtype) @ self.weight + self.bias


def activation_of(ask: Ask, batch: Batch) -> Tensor:
    """The activations [rows, width] of a batch, as they are in it or computed."""
    return wide(ask(batch, "activation")["activation"])


def fit_baselines(ask: Ask, rows: Any, count: int, batch_size: int, world: World) -> Baselines:
    """From `count` rows, evenly spread over those for training. Collective; the same on every rank."""

    def compute(batch: Batch) -> dict[str, Tensor]:
        activation = activation_of(ask, batch)
        return {"activation": activation, **ask({**batch, "activation": activation}, "logit_lens")}

    found = compute_rows(SpreadRows(rows, count), compute, batch_size, world)
    return fit(found["features"], found["activation"], world.device)


def fit(features: Tensor, activations: Tensor, device: torch.device) -> Baselines:
    """The mean of activations [rows, width], and the ridge regression that gives them from features [rows, width]."""
    x, y = features.double(), activations.double()
    x_mean, mean = x.mean(0), y.mean(0)
    x = x - x_mean
    products = x.T @ x
    penalty = (RIDGE * products.diagonal().mean()).clamp_min(1e-12)  # features may all be the same
    weight = torch.linalg.solve(products + penalty * torch.eye(len(products), dtype=x.dtype), x.T @ (y - mean))
    parts = (mean, weight, mean - x_mean @ weight)
    return Baselines(*(part.to(device, activations.dtype) for part in parts))
