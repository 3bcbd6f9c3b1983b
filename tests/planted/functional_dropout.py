"""Bug: the same dropout without a module that shows it."""

from torch import Tensor, nn
from torch.nn import functional

from planted.parts import fit, recipe_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.dropout(self.first(x).tanh(), 0.5, self.training))


recipe = recipe_of(lambda bench: fit(bench, module=Net()))
