"""A trained model to use: for sampling, evaluation and export."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.checkpoint.manifest import DamageError, read_manifest
from samestep.checkpoint.weight_sources import WeightSource, part_names
from samestep.core.config import build
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.parallel.build import build_uninitialized, materialize
from samestep.train.learner.ema import AVERAGE
from samestep.train.pretrained.sources import fill, is_checkpoint, is_run, newest_checkpoint, open_weights
from samestep.train.recipe import Recipe
from samestep.train.recipe_registry import find_recipe, known_recipes
from samestep.train.run_record import find_run

TOKENIZER = "tokenizer"
"""The folder among a stage's artifacts in which its tokenizer lies."""


@dataclass(frozen=True)
class Trained:
    """A model on disk: its recipe, its configuration, its weights, and the files that it needs beside them."""

    name: str
    """The recipe's name."""
    recipe: Recipe
    config: Any
    source: Path
    """The checkpoint or published folder that holds its weights."""
    files: Path
    """Where the files lie that go with it, such as a tokenizer."""
    verified: bool = False
    """Whether every byte of the weights was checked when it was opened."""

    @property
    def tokenizer(self) -> Path:
        """The folder of its tokenizer, if it has one: of its own in a run, that of the model itself otherwise."""
        own = self.files / TOKENIZER
        return own if own.is_dir() else self.files

    def weights(self) -> WeightSource:
        """Its weights, left on the disk until they are copied: the averaged ones, if its run averaged them."""
        averaged = is_checkpoint(self.source) and AVERAGE in part_names(self.source)
        return open_weights(self.source, AVERAGE if averaged else "model", verify=not self.verified)

    def load(self, module: nn.Module) -> None:
        """Fill a module of the right shape with the weights, where it lies and in its type."""
        fill(module, self.weights(), f"weights of {self.source}")

    def build(
        self, make: Callable[[], nn.Module], device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> nn.Module:
        """The network that `make` builds, with its weights, ready for use; it never lies in memory twice."""
        module = build_uninitialized(make)
        if dtype is not None:
            module = module.to(dtype)
        return materialize(module, torch.device(device), self.load).eval()


def open_trained(text: str) -> Trained:
    """The trained model that a user named: a run by path or by name, a checkpoint, or a published model's folder."""
    path = Path(text)
    if is_checkpoint(path):
        return _of_checkpoint(path)
    if path.is_dir() and not is_run(path) and (path / "config.json").exists():
        return _published(path)
    return replace(_of_checkpoint(newest_checkpoint(find_run(text))), verified=True)


def _of_checkpoint(path: Path) -> Trained:
    """A checkpoint says which recipe and settings it is of; companions lie in its run, or beside it if it was moved."""
    try:
        about = read_manifest(path).about
    except DamageError as damage:
        raise UserError(f"the checkpoint {path} is damaged: {damage}; use another one") from None
    recipe = find_recipe(about["recipe"])
    rundir = RunDir(path.absolute().parents[2])
    files = rundir.artifacts(about["stage"]) if is_run(rundir.path) else path
    return Trained(about["recipe"], recipe, build(recipe.config, about["config"]), path, files)


def _published(folder: Path) -> Trained:
    for name in known_recipes():
        recipe = find_recipe(name)
        config = recipe.read_pretrained(folder) if recipe.read_pretrained else None
        if config is not None:
            return Trained(name, recipe, config, folder, folder)
    raise UserError(f"no recipe knows the model in {folder}; give a run, a checkpoint, or a published LLaDA model")
