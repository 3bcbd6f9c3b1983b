"""samestep: the same training run, step for step, on any number of devices.

The names a recipe needs are here. They are loaded on first use, because importing torch takes seconds.
"""

from samestep.core.interrupt import is_command, say_interrupted

if is_command():
    say_interrupted()  # before the imports below, which take time

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.core.config import Alias, Bounds, NoEffect, free
    from samestep.core.errors import RunFailed, UserError
    from samestep.data import noise
    from samestep.data.collate import pad_rows
    from samestep.data.feed import Feed, MicroBatches
    from samestep.data.loading import Batch
    from samestep.data.mixed import Mixed
    from samestep.data.order_choice import Bucketed, Weighted
    from samestep.launch.call import launch
    from samestep.models.causal_folder import open_causal_lm
    from samestep.models.causal_lm import CausalConfig, CausalTransformer
    from samestep.models.log_probs import completion_log_probs
    from samestep.models.sentence_export import write_encoder
    from samestep.models.sentence_folder import EncoderSource, open_encoder
    from samestep.models.small_encoder import small_encoder
    from samestep.train.bench import Bench
    from samestep.train.config import TRAINING_SETTINGS, Config
    from samestep.train.dump import Dump
    from samestep.train.fit import Fit, evaluate
    from samestep.train.generation import Completions, GenerationConfig, Generator, LocalGenerator
    from samestep.train.hooks.every import Every
    from samestep.train.learner.dropout import keyed_dropout
    from samestep.train.learner.earlier_weights import EarlierWeights
    from samestep.train.learner.ema import Average
    from samestep.train.learner.frozen import Frozen
    from samestep.train.learner.learner import Learner
    from samestep.train.learner.lora import Lora
    from samestep.train.learner.merged import merged_weights
    from samestep.train.learner.optimizers.choices import SGD, AdamW, AdamW8bit, Muon
    from samestep.train.learner.optimizers.groups import Group
    from samestep.train.logging.metrics import Metric, Metrics
    from samestep.train.loop import Hook, Task, Tick
    from samestep.train.own_loop import (
        get_dataloader_for_distributed,
        init_distributed,
        setup_distributed_models,
        sync_metrics,
    )
    from samestep.train.plan import Schedule
    from samestep.train.pretrained.load import load
    from samestep.train.pretrained.trained_model import Trained
    from samestep.train.recipe import Recipe, Stage, Verb
    from samestep.train.whole_set import WholeSet, gather_rows
    from samestep.world.world import World

_EXPORTS = {
    "AdamW": "samestep.train.learner.optimizers.choices",
    "AdamW8bit": "samestep.train.learner.optimizers.choices",
    "Alias": "samestep.core.config",
    "Average": "samestep.train.learner.ema",
    "Batch": "samestep.data.loading",
    "Bench": "samestep.train.bench",
    "Bucketed": "samestep.data.order_choice",
    "CausalConfig": "samestep.models.causal_lm",
    "CausalTransformer": "samestep.models.causal_lm",
    "Completions": "samestep.train.generation",
    "Config": "samestep.train.config",
    "Dump": "samestep.train.dump",
    "EarlierWeights": "samestep.train.learner.earlier_weights",
    "EncoderSource": "samestep.models.sentence_folder",
    "Every": "samestep.train.hooks.every",
    "Feed": "samestep.data.feed",
    "Fit": "samestep.train.fit",
    "Frozen": "samestep.train.learner.frozen",
    "GenerationConfig": "samestep.train.generation",
    "Generator": "samestep.train.generation",
    "Group": "samestep.train.learner.optimizers.groups",
    "Hook": "samestep.train.loop",
    "Learner": "samestep.train.learner.learner",
    "LocalGenerator": "samestep.train.generation",
    "Lora": "samestep.train.learner.lora",
    "Metric": "samestep.train.logging.metrics",
    "Metrics": "samestep.train.logging.metrics",
    "MicroBatches": "samestep.data.feed",
    "Mixed": "samestep.data.mixed",
    "Muon": "samestep.train.learner.optimizers.choices",
    "NoEffect": "samestep.core.config",
    "Recipe": "samestep.train.recipe",
    "RunFailed": "samestep.core.errors",
    "SGD": "samestep.train.learner.optimizers.choices",
    "Schedule": "samestep.train.plan",
    "Stage": "samestep.train.recipe",
    "TRAINING_SETTINGS": "samestep.train.config",
    "Task": "samestep.train.loop",
    "Tick": "samestep.train.loop",
    "Trained": "samestep.train.pretrained.trained_model",
    "UserError": "samestep.core.errors",
    "Verb": "samestep.train.recipe",
    "Weighted": "samestep.data.order_choice",
    "WholeSet": "samestep.train.whole_set",
    "World": "samestep.world.world",
    "completion_log_probs": "samestep.models.log_probs",
    "evaluate": "samestep.train.fit",
    "Bounds": "samestep.core.config",
    "free": "samestep.core.config",
    "gather_rows": "samestep.train.whole_set",
    "get_dataloader_for_distributed": "samestep.train.own_loop",
    "init_distributed": "samestep.train.own_loop",
    "keyed_dropout": "samestep.train.learner.dropout",
    "load": "samestep.train.pretrained.load",
    "merged_weights": "samestep.train.learner.merged",
    "open_causal_lm": "samestep.models.causal_folder",
    "open_encoder": "samestep.models.sentence_folder",
    "pad_rows": "samestep.data.collate",
    "setup_distributed_models": "samestep.train.own_loop",
    "small_encoder": "samestep.models.small_encoder",
    "sync_metrics": "samestep.train.own_loop",
    "write_encoder": "samestep.models.sentence_export",
}

_EARLIER_NAMES = {"Figure": "Metric", "Micros": "MicroBatches"}
"""Recipes that were written for an earlier version still find these."""

__all__ = [
    "SGD",
    "TRAINING_SETTINGS",
    "AdamW",
    "AdamW8bit",
    "Alias",
    "Average",
    "Batch",
    "Bench",
    "Bounds",
    "Bucketed",
    "CausalConfig",
    "CausalTransformer",
    "Completions",
    "Config",
    "Dump",
    "EarlierWeights",
    "EncoderSource",
    "Every",
    "Feed",
    "Fit",
    "Frozen",
    "GenerationConfig",
    "Generator",
    "Group",
    "Hook",
    "Learner",
    "LocalGenerator",
    "Lora",
    "Metric",
    "Metrics",
    "MicroBatches",
    "Mixed",
    "Muon",
    "NoEffect",
    "Recipe",
    "RunFailed",
    "Schedule",
    "Stage",
    "Task",
    "Tick",
    "Trained",
    "UserError",
    "Verb",
    "Weighted",
    "WholeSet",
    "World",
    "completion_log_probs",
    "evaluate",
    "free",
    "gather_rows",
    "get_dataloader_for_distributed",
    "init_distributed",
    "keyed_dropout",
    "launch",
    "load",
    "merged_weights",
    "noise",
    "open_causal_lm",
    "open_encoder",
    "pad_rows",
    "setup_distributed_models",
    "small_encoder",
    "sync_metrics",
    "write_encoder",
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
