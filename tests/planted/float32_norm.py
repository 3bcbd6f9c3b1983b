"""Not a bug: a norm that computes in float32 inside a network of another type, as Llama's does."""

from torch import Tensor, nn

from planted.parts import fit, recipe_of


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(1, 4).bias.detach() + 1.0)

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        return self.weight * (exact * (exact.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), Norm(), nn.Linear(4, 1))


recipe = recipe_of(lambda bench: fit(bench, module=net()))
