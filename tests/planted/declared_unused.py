"""Not a bug: a parameter without a gradient, declared as such. It must train on several ranks and pass."""

from planted.parts import Net, fit, recipe_of
from torch import Tensor, nn

from samestep import Bench, Fit


class Idle(Net):
    """The sound network with a part that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def build(bench: Bench) -> Fit:
    return fit(bench, module=Idle())


recipe = recipe_of(build, unused=["idle.*"])
