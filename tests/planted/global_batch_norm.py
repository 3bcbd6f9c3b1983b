"""Not a bug: BatchNorm over the whole global batch, which must be one micro-batch on each rank."""

from dataclasses import replace

from torch import nn

from planted.parts import VERIFY, fit, recipe_of
from samestep import global_batch_norm


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


recipe = replace(
    recipe_of(lambda bench: fit(bench, module=global_batch_norm(net()))),
    presets={"verify": {**VERIFY, "batch_size": 7}},
)
