"""Not a bug: torch's dropout in a network that was not written for it, keyed by the one call."""

from torch import nn

from planted.parts import fit, recipe_of
from samestep import keyed_dropout


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4), nn.Dropout(0.1), nn.Linear(4, 1))


recipe = recipe_of(lambda bench: fit(bench, module=keyed_dropout(net())))
