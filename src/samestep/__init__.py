"""samestep: the same training run, step for step, on any number of devices.

The names a recipe needs are here. They are loaded on first use, because importing torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.core.errors import RunFailed, UserError
    from samestep.data import noise
    from samestep.data.feed import Feed, MicroBatches
    from samestep.launch.call import launch
    from samestep.train.bench import Bench
    from samestep.train.config import Config
    from samestep.train.fit import Fit, evaluate
    from samestep.train.learner.dropout import keyed_dropout
    from samestep.train.learner.learner import Learner
    from samestep.train.logging.metrics import Metric
    from samestep.train.loop import Task, Tick
    from samestep.train.pretrained.load import load
    from samestep.train.pretrained.trained_model import Trained
    from samestep.train.recipe import Recipe, Stage, Verb

_EXPORTS = {
    "Bench": "samestep.train.bench",
    "Config": "samestep.train.config",
    "Feed": "samestep.data.feed",
    "Metric": "samestep.train.logging.metrics",
    "Fit": "samestep.train.fit",
    "Learner": "samestep.train.learner.learner",
    "MicroBatches": "samestep.data.feed",
    "Recipe": "samestep.train.recipe",
    "RunFailed": "samestep.core.errors",
    "Stage": "samestep.train.recipe",
    "Task": "samestep.train.loop",
    "Tick": "samestep.train.loop",
    "Trained": "samestep.train.pretrained.trained_model",
    "UserError": "samestep.core.errors",
    "Verb": "samestep.train.recipe",
    "evaluate": "samestep.train.fit",
    "keyed_dropout": "samestep.train.learner.dropout",
    "load": "samestep.train.pretrained.load",
}

_EARLIER_NAMES = {"Figure": "Metric", "Micros": "MicroBatches"}
"""Recipes that were written for an earlier version still find these."""

__all__ = [
    "Bench",
    "Config",
    "Feed",
    "Fit",
    "Learner",
    "Metric",
    "MicroBatches",
    "Recipe",
    "RunFailed",
    "Stage",
    "Task",
    "Tick",
    "Trained",
    "UserError",
    "Verb",
    "evaluate",
    "keyed_dropout",
    "launch",
    "load",
    "noise",
]


def __getattr__(name: str) -> Any:
    name = _EARLIER_NAMES.get(name, name)
    if name == "noise":
        return import_module("samestep.data.noise")
    if name == "launch":  # a package that can be called
        return import_module("samestep.launch")
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'samestep' has no attribute {name!r}")
