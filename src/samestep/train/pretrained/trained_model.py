"""Opening a trained model, for sampling, evaluation and export."""

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
from samestep.train.pretrained.open_weights import fill, final_checkpoint, is_checkpoint, is_run, open_weights
from samestep.train.recipe import Recipe
from samestep.train.recipe_registry import find_recipe, known_recipes
from samestep.train.run_record import find_run

TOKENIZER = "tokenizer"
"""The folder of the tokenizer among a stage's artifacts."""


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
    """The folder of the files that go with it, such as a tokenizer."""
    verified: bool = False
    """Whether every byte of the weights was checked when it was opened."""

    @property
    def tokenizer(self) -> Path:
        """The folder of its tokenizer, if it has one: a separate folder in a run, else the folder of the model."""
        own = self.files / TOKENIZER
        return own if own.is_dir() else self.files

    def weights(self) -> WeightSource:
        """Its weights, left on the disk until they are copied: the averaged ones, if its run averaged them."""
        averaged = is_checkpoint(self.source) and AVERAGE in part_names(self.source)
        return open_weights(self.source, AVERAGE if averaged else "model", verify=not self.verified)

    def load(self, module: nn.Module) -> None:
        """FillFunction a module of the right shape with the weights, on its device and in its type."""
        fill(module, self.weights(), f"weights of {self.source}")

    def build(
        self, make: Callable[[], nn.Module], device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> nn.Module:
        """The network that `make` builds, with its weights, ready for use; it is never in memory twice."""
        module = build_uninitialized(make)
        if dtype is not None:
            module = module.to(dtype)
        return materialize(module, torch.device(device), self.load).eval()


def open_trained(text: str) -> Trained:
    """The trained model that a user named: a run by path or by name, a checkpoint, or a published model's folder."""
    path = Path(text)
    if is_checkpoint(path):
        return _open_checkpoint(path)
    if path.is_dir() and not is_run(path) and (path / "config.json").exists():
        return _open_published(path)
    return replace(_open_checkpoint(final_checkpoint(find_run(text))), verified=True)


def _open_checkpoint(path: Path) -> Trained:
    """A checkpoint names its recipe and settings; the other files are in its run, or beside it if it was moved."""
    try:
        about = read_manifest(path).about
    except DamageError as damage:
        raise UserError(f"the checkpoint {path} is damaged: {damage}; use another one") from None
    recipe = find_recipe(about["recipe"])
    rundir = RunDir(path.absolute().parents[2])
    files = rundir.artifacts(about["stage"]) if is_run(rundir.path) else path
    return Trained(about["recipe"], recipe, build(recipe.config, about["config"]), path, files)


def _open_published(folder: Path) -> Trained:
    for name in known_recipes():
        recipe = find_recipe(name)
        config = recipe.read_pretrained(folder) if recipe.read_pretrained else None
        if config is not None:
            return Trained(name, recipe, config, folder, folder)
    raise UserError(
        f"no recipe knows the model in {folder}; give a run, a checkpoint, or a published model of a recipe"
    )
