"""Not a bug: a layer without a gradient, declared as such."""

from torch import Tensor, nn

from planted.parts import fit, recipe_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(1, 1)
        self.idle = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


recipe = recipe_of(lambda bench: fit(bench, module=Net()), unused=["idle.*"])
