"""`samestep.load`: the network of any learner of any run, with its weights."""

from pathlib import Path

import torch
from torch import nn

from samestep.train.trained.trained_model import open_trained


def load(
    source: str | Path,
    which: str | int = "best",
    learner: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    stage: str | None = None,
    averaged: bool = True,
    recipe: str | None = None,
) -> nn.Module:
    """The trained network of a learner, in evaluation mode; nothing in its run directory changes.

    `source` is a run by path or name, a checkpoint, or an exported folder or safetensors file. `which` is `best` (by
    the stage's metric; the newest checkpoint where there is none), `last`, or a step. `learner` is by default `model`,
    or the only one; `stage` the last stage that has it. The weights are the averaged ones if the run averaged them;
    `averaged=False` gives those that were trained. `dtype` replaces the type that the network was trained in. `recipe`
    is for a recipe that has moved since, or that neither ships with samestep nor was started by this user before.
    """
    opened = open_trained(str(source), which, learner=learner, stage=stage, recipe=recipe, averaged=averaged)
    return opened.network(learner, device, dtype)
