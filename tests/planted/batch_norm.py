"""Bug: BatchNorm normalises a row with the statistics of whatever rows share its micro-batch."""

from torch import nn

from planted.parts import fit, recipe_of


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


recipe = recipe_of(lambda bench: fit(bench, module=net()))
