"""Bug: every micro-batch counts as one, whatever its size."""

from torch import Tensor, nn

from planted.parts import Batch, error, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": error(module, batch) / len(batch["x"])}


def count(batch: Batch) -> dict[str, Tensor]:
    return {"error": batch["live"].double() / len(batch["x"])}


recipe = recipe_of(lambda bench: fit(bench, loss, count))
