"""What is filled in and checked before a run is recorded: the family, and every record."""

from contextlib import suppress
from dataclasses import replace

from samestep import NoEffect, UserError, World
from samestep.core.paths import expand_home
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.record_files import family_of
from samestep.recipes.dpo.stages import open_family
from samestep.train.record.config import named_source


def resolve_config(config: DpoConfig) -> DpoConfig:
    """The configuration with its family, if all its records can be used."""
    family = config.family
    if family == "auto":
        family = family_of(config.data.train) if config.data.train else "protein"
    config = replace(config, family=family, base_batch_size=config.base_batch_size or config.batch_size)
    _check_settings(config)
    _check_family(config)
    if _is_at_hand(config):
        open_family(config, World.single()).pairs()
    return config


def _check_settings(config: DpoConfig) -> None:
    """Refuse what cannot work together."""
    if config.data.validation is not None and config.data.train is None:
        raise UserError("Name the training records too (train_data); only val_data is given.")
    if config.family == "text" and config.objective.diversity_lambda:
        raise UserError("Leave diversity_lambda at 0: it is for proteins, and the pairs are texts.")
    if config.objective.diversity_lambda and config.distributed.strategy == "fsdp":
        raise UserError("Set distributed.strategy=ddp, or diversity_lambda=0: a sharded network cannot sample.")
    if config.family == "text" and config.padding_free and config.model.name is None and config.model.dir is None:
        raise UserError("Name a model of transformers with base_model_name, or leave padding_free at false.")
    if config.family == "text" and config.model.lora_rank and config.reference == "cached" and named_source(config):
        raise UserError("Set reference=live: the reference of adapters that were trained before is not computed ahead.")


def _check_family(config: DpoConfig) -> None:
    """Refuse records of the other family in one sentence, before each of them is found to lack every field."""
    for path in filter(None, (config.data.train, config.data.validation)):
        found = config.family
        with suppress(UserError):  # what is wrong with the file is said where it is read
            found = family_of(path)
        if found != config.family:
            presets = {"text": "text or text-tiny", "protein": "proteinmpnn or tiny"}[found]
            raise UserError(f"Choose --preset {presets}, or set family={found}: {path} has {found} pairs.")


def _is_at_hand(config: DpoConfig) -> bool:
    """Whether nothing has to be downloaded for the tokens of the texts; if so, all ranks do it, and then check."""
    if config.family == "protein" or config.model.dir is not None or config.model.name is None:
        return True
    return expand_home(config.model.name).is_dir()


NO_EFFECT = (
    NoEffect(
        ("model.text.*", "model.lora_rank", "padding_free"),
        lambda c: c.family == "protein",
        "it is for texts, and the pairs are proteins; leave it out",
    ),
    NoEffect(
        ("model.protein.*", "decoding_order", "sampling_temperature"),
        lambda c: c.family == "text",
        "it is for proteins, and the pairs are texts; leave it out",
    ),
    NoEffect(
        ("model.protein.*", "model.text.*"),
        lambda c: c.model.name is not None or c.model.dir is not None,
        "the model that base_model_name names has its own shape; leave out one of the two",
    ),
    NoEffect(
        "objective.label_smoothing",
        lambda c: c.objective.loss_type != "dpo",
        "only the loss dpo has label smoothing; set objective.loss_type=dpo, or leave it out",
    ),
    NoEffect(
        ("data.validation_fraction", "data.split_by"),
        lambda c: c.data.validation is not None,
        "the validation records are a file of their own; leave out data.validation (--val_data) or this",
    ),
)
"""Settings that have no effect beside others."""
