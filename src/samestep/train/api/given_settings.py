"""Which of the settings that a user gave have no effect: those of every run, by the recipe, and by its stages.

A setting that cannot work is refused where it is used, whoever set it. One that works and changes nothing is told to
those who gave it (`core/config/no_effect.py`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from samestep.core.config.no_effect import Given, NoEffect, check_no_effect
from samestep.train.api.recipe import Recipe, Stage, no_validation
from samestep.train.record.config import AUTO, Config
from samestep.train.record.plan import global_batch
from samestep.world.watchdog.limits import ACTIVITIES

LIMITS = tuple(f"watch.{activity}" for activity in ACTIVITIES)
OF_ALL_RUNS: tuple[NoEffect, ...] = (
    NoEffect(
        "epochs",
        lambda c: c.max_steps is not None,
        "max_steps says how long the run is; add max_steps=null, or leave it out",
    ),
    NoEffect(
        "accumulation",
        lambda c: c.global_batch_size is not None and c.accumulation > 1,
        "global_batch_size says how many rows a step has; change that, set it to null, or leave it out",
    ),
    NoEffect(
        "batch_size",
        lambda c: c.global_batch_size is not None and c.batch_size != AUTO and c.batch_size > c.global_batch_size,
        "a step has no more rows than global_batch_size says; set that for a larger batch, or leave it out",
    ),
    NoEffect(
        "base_batch_size",
        lambda c: c.lr_scaling == "none",
        "the learning rate is not scaled; set lr_scaling=linear or sqrt, or leave it out",
    ),
    NoEffect(
        "warmup_ratio",
        lambda c: c.warmup_steps is not None,
        "warmup_steps says how long the warm-up is; leave out one of the two",
    ),
    NoEffect(
        "decay_ratio", lambda c: c.schedule != "wsd", "only schedule=wsd has that decay; set it, or leave this out"
    ),
    NoEffect(
        "final_lr_ratio",
        lambda c: c.schedule == "constant",
        "a constant learning rate does not fall; choose another schedule, or leave it out",
    ),
    NoEffect("plateau_*", lambda c: c.schedule != "plateau", "it is for schedule=plateau; set that, or leave it out"),
    NoEffect(
        "min_improvement",
        lambda c: c.schedule != "plateau" and not c.early_stopping,
        "only early_stopping and schedule=plateau follow improvement; set one of them, or leave it out",
    ),
    NoEffect(
        "momentum",
        lambda c: c.optimizer in ("adamw", "adamw8bit"),
        "it is for optimizer=sgd and optimizer=muon; set one of them or beta1, or leave it out",
    ),
    NoEffect(
        ("beta1", "beta2", "adam_eps"),
        lambda c: c.optimizer == "sgd",
        "sgd has a momentum instead; choose another optimizer, or leave it out",
    ),
    NoEffect("profile_all_ranks", lambda c: not c.profile, "no step is profiled; set profile=20-25, or leave it out"),
    NoEffect(
        "prefetch",
        lambda c: not c.num_workers,
        "the training process itself loads the data; set num_workers, or leave it out",
    ),
    NoEffect(
        "log.wandb_project",
        lambda c: not c.log.wandb,
        "nothing is logged to Weights & Biases; add --log.wandb, or leave it out",
    ),
    NoEffect("log.level", lambda c: c.log.quiet, "log.quiet prints errors only; leave out one of the two"),
    NoEffect(
        LIMITS,
        lambda c: c.watch.enabled and c.watch.limit is not None,
        "watch.limit is one limit for everything; leave out one of the two",
    ),
    NoEffect(
        ("watch.limit", *LIMITS),
        lambda c: not c.watch.enabled,
        "watch.enabled=false turns it off; leave out one of the two",
    ),
)
"""What holds for every recipe."""
RESUMED = NoEffect("accumulation", lambda _: True, "a resumed run keeps its global batch; leave it out")
"""What holds for a run whose numbers are fixed."""


def check_given(recipe: Recipe, config: Config, given: Given, more: Sequence[NoEffect] = ()) -> list[str]:
    """Refuse what was typed and has no effect in a run with this configuration; returns sentences about other settings
    that have none."""
    stages = recipe.stages(config)
    rules = [*recipe.no_effect, *OF_ALL_RUNS, *more, *_without_validation(stages)]
    known = [rule for rule in rules if rule.when(config)]
    others = [name for name in given if not any(rule.matches(name) for rule in known)]
    return check_no_effect([*rules, *_set_by_stages(stages, config, others)], config, given)


def _without_validation(stages: Sequence[Stage]) -> list[NoEffect]:
    """What follows validation, where no stage has one."""
    found = []
    if all(stage.validate is no_validation for stage in stages):
        names = ("validate_every", "validate_at_start")
        found.append(NoEffect(names, lambda _: True, "no stage of the recipe has a `validate`; leave it out"))
    if all(stage.best is None for stage in stages):
        why = "no stage of the recipe has a `best` metric to choose by; leave it out"
        found.append(NoEffect("checkpoint.keep_best", lambda _: True, why))
    return found


def _set_by_stages(stages: Sequence[Stage], config: Any, names: Sequence[str]) -> list[NoEffect]:
    """Of these settings, those that every stage has another value for, or does not use."""
    if config.global_batch_size is None:  # stages always know it; any number does here
        config = replace(config, global_batch_size=global_batch(config, 1))
    why = "each stage of the recipe that uses it has a value of its own; set what that follows from, or leave it out"
    return [NoEffect(name, lambda _: True, why) for name in names if not _reaches_stages(name, stages, config)]


def _reaches_stages(name: str, stages: Sequence[Stage], config: Any) -> bool:
    """Whether a stage's settings change with this one. Only of numbers it is known how to change them."""
    with suppress(Exception):  # what a recipe makes of another value may fail; of this one, it is said elsewhere
        other = _with_other_number(config, name)
        return other is None or any(
            stage.config is None or stage.config(other) != stage.config(config)
            for stage in stages
            if not any(fnmatchcase(name, pattern) for pattern in stage.ignores)
        )
    return True


def _with_other_number(config: Any, name: str) -> Any:
    """The configuration with another value of a number; None if the setting is none."""
    first, _, rest = name.partition(".")
    value: Any = getattr(config, first, None)
    other: Any = None
    if rest:
        other = _with_other_number(value, rest)
    elif isinstance(value, float) or type(value) is int:  # not a bool
        other = value / 2 if isinstance(value, float) else value + 1
    return None if other is None else replace(config, **{first: other})
