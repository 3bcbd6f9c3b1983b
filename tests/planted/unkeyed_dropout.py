"""Bug: dropout from torch's own generator, so that what is dropped depends on the rank."""

from torch import nn

from planted.parts import fit, recipe_of


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))


recipe = recipe_of(lambda bench: fit(bench, module=net()))
