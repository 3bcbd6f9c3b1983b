"""A trained model in Python: its network, and what its recipe can do with it.

model = samestep.load("my-run")
model.network                            # a torch module in evaluation mode
model.generate("The ", samples=2)        # what `samestep sample` does, with the same options and settings
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import quoted
from samestep.train.api.recipe import Recipe, Verb
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.train.trained.verb_options import read_options
from samestep.world.world import World


@dataclass(frozen=True)
class Model:
    """A trained model on one device. What it can do beside giving its `network` follows from its recipe, and is listed
    by `dir(model)`: `generate`, `embed`, `explain`, `design`. Weights are read when they are needed first."""

    trained: Trained
    """Where it is from: recipe, configuration, files."""
    device: torch.device
    """Where it computes."""
    dtype: torch.dtype | str | None = None
    """The type of its weights; None: that of training."""

    @property
    def recipe(self) -> Recipe:
        return self.trained.recipe

    @property
    def config(self) -> Any:
        """The configuration that it was trained with."""
        return self.trained.config

    @cached_property
    def network(self) -> nn.Module:
        """The network of the learner that is meant, in evaluation mode. It is not the one that methods use: on a GPU
        that is cast to the type that it computes in."""
        return replace(self.trained, networks_in_use=None).network(None, self.device, self.dtype)

    @cached_property
    def world(self) -> World:
        """The lone process that uses it."""
        return World.single(str(self.device))

    def use(self, verb: Verb, prepare: Callable[[Any], Any] | None = None, /, **options: Any) -> Any:
        """What a verb of the recipe gives, with options and settings by the names that they have on a command line;
        `prepare` changes the options before they are used."""
        words = [f"--{name}={_text(value)}" for name, value in options.items() if value is not None]
        own, change = read_options(verb, self.recipe, words)
        trained = replace(self.trained, config=change(self.config))
        return verb.run(trained, prepare(own) if prepare else own, self.world)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.recipe.methods:
            has = quoted(self.recipe.methods) if self.recipe.methods else "none"
            raise AttributeError(f"a model of recipe {self.trained.name!r} has no {name!r}; its methods are: {has}")
        return partial(self.recipe.methods[name], self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.recipe.methods})

    def __repr__(self) -> str:
        return f"<Model of recipe {self.trained.name!r} in {self.trained.source}>"


def _text(value: Any) -> str:
    """A value as it is written on a command line."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


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
) -> Model:
    """A trained model, ready for use; nothing in its run directory changes.

    `source` is a run by path or name, a checkpoint, or an exported folder or safetensors file. `which` is `best` (by
    the stage's metric; the newest checkpoint where there is none), `last`, or a step. `learner` is by default `model`,
    or the only one; `stage` the last stage that has it. The weights are the averaged ones if the run averaged them;
    `averaged=False` gives those that were trained. `dtype` replaces the type that the network was trained in. `recipe`
    is for a recipe that has moved since, or that neither ships with samestep nor was started by this user before.
    """
    opened = open_trained(str(source), which, learner=learner, stage=stage, recipe=recipe, averaged=averaged)
    if learner is not None:
        opened.learner_name()
    return Model(replace(opened, networks_in_use={}), torch.device(device), dtype)
