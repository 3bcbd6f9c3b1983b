"""What a run does: what is checked before it is recorded, its stages, and the weight files that it leaves."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from samestep import TRAINING_SETTINGS, Bench, Dump, LanguageModel, Metrics, Stage, Tick, UserError, World
from samestep.data.records.mixture import shown
from samestep.kit.epoch_files import epoch_file
from samestep.kit.named_model import is_at_hand
from samestep.models.protein_mpnn_files import read_protein_mpnn
from samestep.recipes.dpo.config import DpoConfig, ModelConfig
from samestep.recipes.dpo.families import Family, family_of
from samestep.recipes.dpo.protein_family import ProteinFamily
from samestep.recipes.dpo.task import POLICY, REFERENCE, Preferences, build_dump
from samestep.recipes.dpo.text_family import TextFamily, open_text_model
from samestep.train.record.config import AUTO, named_source

BEST = "val/loss"
SHOWN = (
    *("loss", "accuracy", "margin"),
    *(BEST, "val/accuracy", "val/margin", "val/perplexity", "val/recovery"),
)
_UNUSED_BY_REFERENCE = (*TRAINING_SETTINGS, "objective.*", "bucketed", "sampling_temperature")


def open_family(config: DpoConfig, world: World) -> Family:
    """The family of a resolved configuration. Collective, since a model may be downloaded."""
    return TextFamily(config, world) if config.family == "text" else ProteinFamily(config, world)


def resolve_config(config: DpoConfig) -> DpoConfig:
    """The configuration with its family, if all its records can be used."""
    family = config.family
    if family == "auto":
        family = family_of(config.data.records(config.data.train)) if config.data.train else "protein"
    rows = config.base_batch_size or (config.global_batch_size if config.batch_size == AUTO else config.batch_size)
    config = replace(config, family=family, base_batch_size=rows or 0)
    _check_settings(config)
    _check_family(config)
    if _is_at_hand(config):
        found = open_family(config, World.single()).pairs().split_by
        config = replace(config, data=replace(config.data, split_by=found or config.data.split_by))
    return config


def _check_settings(config: DpoConfig) -> None:
    """Refuse what cannot work together."""
    if config.data.validation is not None and config.data.train is None:
        raise UserError("Name the training records too (train_data); only val_data is given.")
    if config.family == "protein" and config.data.too_long == "truncate":
        raise UserError("Set data.too_long=refuse or drop: a protein is not cut.")
    if config.family == "text" and config.objective.diversity_lambda:
        raise UserError("Leave diversity_lambda at 0: it is for proteins, and the pairs are texts.")
    if config.objective.diversity_lambda and config.distributed.strategy == "fsdp":
        raise UserError("Set distributed.strategy=ddp, or diversity_lambda=0: a sharded network cannot sample.")
    if config.family == "text" and config.padding_free and config.model.path is None:
        raise UserError("Name a model of transformers with base_model_name, or leave padding_free at false.")
    if config.family == "text" and config.model.lora_rank and config.reference == "cached" and named_source(config):
        raise UserError("Set reference=live: the reference of adapters that were trained before is not computed ahead.")


def _check_family(config: DpoConfig) -> None:
    """Refuse records of the other family in one sentence, before each of them is found to lack every field."""
    for path in (path for path in (config.data.train, config.data.validation) if path):
        found = config.family
        with suppress(UserError):  # what is wrong with the file is said where it is read
            found = family_of(config.data.records(path))
        if found != config.family:
            presets = {"text": "text or text-tiny", "protein": "proteinmpnn or tiny"}[found]
            raise UserError(f"Choose --preset {presets}, or set family={found}: {shown(path)} has {found} pairs.")


def _is_at_hand(config: DpoConfig) -> bool:
    """Whether nothing has to be downloaded for the tokens of the texts; if so, all ranks do it, and then check."""
    return config.family == "protein" or config.model.dir is not None or is_at_hand(config.model.name)


def stages(config: DpoConfig) -> list[Stage]:
    """The reference's log-probabilities, if they are cached, and training."""
    train = Stage("dpo", _train, validate=Preferences.validate, best=(BEST, "min"), hooks=_hooks, shown=SHOWN)
    if config.reference == "live":
        return [train]
    return [Stage(REFERENCE, _compute_reference, ignores=_UNUSED_BY_REFERENCE), train]


def _compute_reference(bench: Bench) -> Dump:
    return build_dump(bench, open_family(bench.config, bench.world))


def _train(bench: Bench) -> Preferences:
    return Preferences(bench, open_family(bench.config, bench.world))


def _hooks(task: Preferences, bench: Bench) -> list["WeightFiles"]:
    is_wanted = task.family.files_by_default if bench.config.pt_files is None else bench.config.pt_files
    return [WeightFiles(task, bench)] if is_wanted else []


def describe(config: DpoConfig) -> dict[str, str]:
    """Data, model and objective, for the banner."""
    objective = config.objective
    more = {"sft": objective.sft_coef, "diversity": objective.diversity_lambda}
    added = "".join(f", {name} {value:g}" for name, value in more.items() if value)
    return {
        "dataset": shown(config.data.train) or "pairs that come with the recipe",
        **_split(config),
        "model": f"{config.model.path or 'built-in'} ({config.family})"
        + (f", LoRA of rank {config.model.lora_rank}" if config.family == "text" and config.model.lora_rank else ""),
        "objective": f"{objective.loss_type}, beta {objective.beta:g}{added}",
        "reference": config.reference,
    }


def _split(config: DpoConfig) -> dict[str, str]:
    """How records are split, if they are."""
    data = config.data
    if data.validation is not None and not data.test_fraction:
        return {}
    source = "structure" if config.family == "protein" else "prompt"
    names = {"auto": f"by {source} if there are enough", "structure": f"by {source}", "pair": "by pair"}
    return {"split": names[data.split_by]}


def language_models(config: DpoConfig) -> dict[str, Callable[[World], LanguageModel]]:
    """The policy, if it is one."""
    return {POLICY: partial(open_text_model, config.model)} if config.family == "text" else {}


class WeightFiles:
    """A hook that writes checkpoint_epoch_N.pt after each epoch, latest_model.pt then and after the last step, and
    best_model.pt where validation is better than before: weights as other programs read them.

    They are in the run's folder beside the full state, which a run resumes from. Each is written completely or not at
    all.
    """

    name = "weight_files"

    def __init__(self, task: Preferences, bench: Bench) -> None:
        self._task, self._bench = task, bench
        self._best = math.inf

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Write what is due. Every rank takes part, since weights may be sharded."""
        validated = self._bench.validation.get(BEST, math.inf)
        is_best = math.isfinite(validated) and validated < self._best
        folder = self._bench.rundir.path
        files = [epoch_file(folder, tick.epoch + 1)] if tick.last_of_epoch else []
        files += [folder / "best_model.pt"] if is_best else []
        files += [folder / "latest_model.pt"] if tick.last_of_epoch or last else []
        self._best = validated if is_best else self._best
        if not files:
            return
        learner = self._task.learner
        weights = learner.merged_weights() if learner.has_adapters else learner.weights(full=True)
        if self._bench.world.is_main:
            for file in files:
                self._task.family.save(file, weights)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best if math.isfinite(self._best) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best = math.inf if state["best"] is None else state["best"]


def read_pretrained(path: Path) -> DpoConfig | None:
    """The configuration of a weight file such as v_48_020.pt or best_model.pt; None if it is something else."""
    if path.suffix != ".pt":
        return None
    try:
        file = read_protein_mpnn(path)
    except UserError:
        return None
    return DpoConfig(family="protein", model=ModelConfig(protein=file.config))
