"""A trained model to use: for sampling, evaluation and export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from samestep.core.config import build
from samestep.train.finding import find_recipe
from samestep.train.opening import RunRecord, find_run
from samestep.train.recipe import Recipe
from samestep.train.weights import find_weights


@dataclass(frozen=True)
class Trained:
    """A model on disk: its recipe, its configuration, its weights, and the files that it needs beside them."""

    name: str
    """The recipe's name."""
    recipe: Recipe
    config: Any
    source: Path
    """The run, checkpoint or folder that it was opened from."""
    files: Path
    """Where the files lie that go with it, such as a tokenizer."""

    def load(self, module: nn.Module) -> None:
        """Fill a module of the right shape with the weights."""
        module.load_state_dict(find_weights(self.source))


def open_trained(text: str) -> Trained:
    """The trained model that a user named: a run, by path or by name."""
    rundir = find_run(text)
    record = RunRecord.read(rundir)
    assert record is not None
    recipe = find_recipe(record.recipe)
    config = build(recipe.config, record.config)
    last = recipe.stages(config)[-1].name
    return Trained(record.recipe, recipe, config, rundir.path, rundir.artifacts(last))
