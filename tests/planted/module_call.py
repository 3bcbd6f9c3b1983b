"""Bug: the wrapper is called to look at something, and the loss is then taken around it, through `.module`."""

import torch
from torch import Tensor, nn

from planted.parts import Batch, error, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    with torch.no_grad():
        module(batch["x"])  # the wrapper is called, but nothing that is learned from comes out of it
    return {"error": error(getattr(module, "module", module), batch)}


recipe = recipe_of(lambda bench: fit(bench, loss))
