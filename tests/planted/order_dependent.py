"""Bug: a row's loss depends on its place in the micro-batch, without any randomness."""

import torch
from torch import Tensor, nn

from planted.parts import Batch, error, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": error(module, batch) * (1.0 + torch.arange(len(batch["x"])))}


recipe = recipe_of(lambda bench: fit(bench, loss))
