"""Bug: the network is called to look at something, and the loss is then taken around it, through `.forward`."""

import torch
from torch import Tensor, nn

from planted.parts import Batch, error, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    with torch.no_grad():
        module(batch["x"])  # the network is called, but nothing that is learned from comes out of it
    return {"error": error(module.forward, batch)}


recipe = recipe_of(lambda bench: fit(bench, loss))
