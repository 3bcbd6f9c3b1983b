"""Bug: noise from torch's own generator, which every rank has for itself."""

import torch
from torch import Tensor, nn

from planted.parts import Batch, error, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": error(module, {**batch, "x": batch["x"] + 0.1 * torch.rand_like(batch["x"])})}


recipe = recipe_of(lambda bench: fit(bench, loss))
