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
    from samestep.train.learner.frozen import Frozen
    from samestep.train.learner.learner import Learner
    from samestep.train.learner.lora import Lora
    from samestep.train.learner.merged import merged_weights
    from samestep.train.logging.metrics import Metric
    from samestep.train.loop import Task, Tick
    from samestep.train.recipe import Recipe, Stage

_EXPORTS = {
    "Bench": "samestep.train.bench",
    "Config": "samestep.train.config",
    "Feed": "samestep.data.feed",
    "Metric": "samestep.train.logging.metrics",
    "Fit": "samestep.train.fit",
    "Frozen": "samestep.train.learner.frozen",
    "Learner": "samestep.train.learner.learner",
    "Lora": "samestep.train.learner.lora",
    "MicroBatches": "samestep.data.feed",
    "Recipe": "samestep.train.recipe",
    "RunFailed": "samestep.core.errors",
    "Stage": "samestep.train.recipe",
    "Task": "samestep.train.loop",
    "Tick": "samestep.train.loop",
    "UserError": "samestep.core.errors",
    "evaluate": "samestep.train.fit",
    "keyed_dropout": "samestep.train.learner.dropout",
    "merged_weights": "samestep.train.learner.merged",
}

_EARLIER_NAMES = {"Figure": "Metric", "Micros": "MicroBatches"}
"""Recipes that were written for an earlier version still find these."""

__all__ = [
    "Bench",
    "Config",
    "Feed",
    "Fit",
    "Frozen",
    "Learner",
    "Lora",
    "Metric",
    "MicroBatches",
    "Recipe",
    "RunFailed",
    "Stage",
    "Task",
    "Tick",
    "UserError",
    "evaluate",
    "keyed_dropout",
    "launch",
    "merged_weights",
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
