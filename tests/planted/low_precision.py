"""Not a bug, but nothing can be proved about it: a hidden layer that computes in bfloat16 whatever it is given."""

import torch
from torch import Tensor, nn

from planted.parts import fit, recipe_of


class Coarse(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        low = torch.bfloat16
        return nn.functional.linear(x.to(low), self.weight.to(low), self.bias.to(low)).to(x.dtype)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), Coarse(4, 4), nn.Tanh(), nn.Linear(4, 1))


recipe = recipe_of(lambda bench: fit(bench, module=net()))
