"""samestep: the same training run, step for step, on any number of devices.

The names a recipe needs are here. They are loaded on first use, because importing torch takes seconds.
"""

from samestep.core.interrupt import hear_interrupts, is_command, is_rank, say_interrupted

if is_command():
    say_interrupted()  # before the imports below, which take time
if is_rank():
    hear_interrupts()

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.core.config import Alias as Alias
    from samestep.core.config import Bounds as Bounds
    from samestep.core.config import NoEffect as NoEffect
    from samestep.core.config import free as free
    from samestep.core.errors import RunFailed as RunFailed
    from samestep.core.errors import UserError as UserError
    from samestep.data import noise as noise
    from samestep.data.augmented import augmented as augmented
    from samestep.data.collate import pad_rows as pad_rows
    from samestep.data.feed import Feed as Feed
    from samestep.data.feed import MicroBatches as MicroBatches
    from samestep.data.loading import Batch as Batch
    from samestep.data.mixed import Mixed as Mixed
    from samestep.data.order_choice import Bucketed as Bucketed
    from samestep.data.order_choice import Weighted as Weighted
    from samestep.data.records.reading import Records as Records
    from samestep.data.records.reading import RecordsConfig as RecordsConfig
    from samestep.data.split import split_records as split_records
    from samestep.data.streams.stream import stream as stream
    from samestep.kit import policy as policy
    from samestep.kit.language_model import LanguageModel as LanguageModel
    from samestep.kit.model_settings import TrainedModelSettings as TrainedModelSettings
    from samestep.kit.named_encoder import open_named_encoder as open_named_encoder
    from samestep.kit.named_model import open_language_model as open_language_model
    from samestep.launching.call import launch as launch
    from samestep.models.causal_folder import open_causal_lm as open_causal_lm
    from samestep.models.causal_lm import CausalConfig as CausalConfig
    from samestep.models.causal_lm import CausalTransformer as CausalTransformer
    from samestep.models.log_probs import completion_log_probs as completion_log_probs
    from samestep.models.sentence_export import write_encoder as write_encoder
    from samestep.models.sentence_folder import EncoderSource as EncoderSource
    from samestep.models.sentence_folder import open_encoder as open_encoder
    from samestep.models.small_encoder import small_encoder as small_encoder
    from samestep.report.notebook import run as run
    from samestep.report.notebook import runs as runs
    from samestep.train.api.bench import Bench as Bench
    from samestep.train.api.dump import Dump as Dump
    from samestep.train.api.fit import Fit as Fit
    from samestep.train.api.fit import evaluate as evaluate
    from samestep.train.api.generation import Completions as Completions
    from samestep.train.api.generation import GenerationConfig as GenerationConfig
    from samestep.train.api.generation import Generator as Generator
    from samestep.train.api.generation import LocalGenerator as LocalGenerator
    from samestep.train.api.loop import Every as Every
    from samestep.train.api.loop import Hook as Hook
    from samestep.train.api.loop import Task as Task
    from samestep.train.api.own_loop import get_dataloader_for_distributed as get_dataloader_for_distributed
    from samestep.train.api.own_loop import init_distributed as init_distributed
    from samestep.train.api.own_loop import setup_distributed_models as setup_distributed_models
    from samestep.train.api.own_loop import sync_metrics as sync_metrics
    from samestep.train.api.recipe import Recipe as Recipe
    from samestep.train.api.recipe import Stage as Stage
    from samestep.train.api.recipe import Verb as Verb
    from samestep.train.api.whole_set import WholeSet as WholeSet
    from samestep.train.api.whole_set import gather_rows as gather_rows
    from samestep.train.artifacts.artifact_key import ArtifactKey as ArtifactKey
    from samestep.train.learner.batch_norm import global_batch_norm as global_batch_norm
    from samestep.train.learner.dropout import keyed_dropout as keyed_dropout
    from samestep.train.learner.earlier_weights import EarlierWeights as EarlierWeights
    from samestep.train.learner.ema import Average as Average
    from samestep.train.learner.frozen import Frozen as Frozen
    from samestep.train.learner.learner import Learner as Learner
    from samestep.train.learner.lora import Lora as Lora
    from samestep.train.learner.lora import merged_weights as merged_weights
    from samestep.train.learner.optimizers.choices import SGD as SGD
    from samestep.train.learner.optimizers.choices import AdamW as AdamW
    from samestep.train.learner.optimizers.choices import AdamW8bit as AdamW8bit
    from samestep.train.learner.optimizers.choices import Muon as Muon
    from samestep.train.learner.optimizers.groups import Group as Group
    from samestep.train.logging.metrics import Metric as Metric
    from samestep.train.logging.metrics import Metrics as Metrics
    from samestep.train.record import samples as samples
    from samestep.train.record.config import TRAINING_SETTINGS as TRAINING_SETTINGS
    from samestep.train.record.config import Config as Config
    from samestep.train.record.plan import Schedule as Schedule
    from samestep.train.record.progress import Tick as Tick
    from samestep.train.trained.model import Model as Model
    from samestep.train.trained.model import load as load
    from samestep.train.trained.trained_model import Trained as Trained
    from samestep.world.world import World as World


_MODULES = ("noise", "policy", "samples")
"""Public names that are modules."""


@cache
def _homes() -> dict[str, str]:
    """The module of each public name. The imports above are the one list of them; they are read as text, because
    importing them all takes seconds."""
    imports = [part for part in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(part, ast.ImportFrom)]
    return {name.name: f"{part.module}" for part in imports for name in part.names if name.asname}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    home = _homes()[name]
    return import_module(f"{home}.{name}") if name in _MODULES else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
