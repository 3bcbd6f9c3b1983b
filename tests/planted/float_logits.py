"""Not a bug: a loss in float32, as language models often take it, whatever the type of the network."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from planted.parts import Batch, fit, recipe_of


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = module(batch["x"]).float()
    return {"nll": cross_entropy(logits, (batch["y"][:, 0] > 0).long(), reduction="none")}


recipe = recipe_of(lambda bench: fit(bench, loss, module=nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))))
