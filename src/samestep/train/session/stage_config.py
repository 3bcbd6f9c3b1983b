"""The settings of one stage: the run's, with what the stage's `config` function changes."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from samestep.checkpoint.manifest import Checkpoint
from samestep.core.config import changed, dump, flatten
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Stage
from samestep.train.record.extension import LENGTH_SETTINGS
from samestep.world.world import World

_OF_THE_RUN = (
    *(
        "preset",
        "name",
        "out",
        "max_time",
        "until",
        "start_over",
        "extend",
        "stages_from",
        "init_from",
        "continue_from",
    ),
    *("deterministic", "evidence", "evidence_rounding", "checkpoint.every_minutes", "watch.*"),
    *("log.level", "log.quiet", "log.tensorboard", "log.wandb", "log.wandb_project"),
    *("distributed.device", "distributed.backend", "distributed.timeout", "distributed.dtype"),
)
"""Settings that are used before any stage begins, or by all stages together."""


_MAY_CHANGE = (*_OF_THE_RUN, *LENGTH_SETTINGS)
"""Settings that are compared elsewhere."""


def stage_config(stage: Stage, config: Any) -> Any:
    """The settings of a stage; `config` has the run's, with its global batch filled in."""
    if stage.config is None:
        return config
    own = stage.config(config)
    if type(own) is not type(config):
        raise UserError(
            f"the config function of stage {stage.name!r} must return a {type(config).__name__}, not a "
            f"{type(own).__name__}; use dataclasses.replace(config, ...)"
        )
    if own.distributed.mixed_precision == "auto":  # what that means was decided for the run
        distributed = replace(own.distributed, mixed_precision=config.distributed.mixed_precision)
        own = replace(own, distributed=distributed)
    mine, runs = (dict(flatten(type(config), dump(each))) for each in (own, config))
    for name in sorted(name for name in {*mine, *runs} if mine.get(name) != runs.get(name)):
        if any(fnmatchcase(name, pattern) for pattern in _OF_THE_RUN):
            raise UserError(f"stage {stage.name!r} cannot have its own {name}: it is the same for the whole run")
    if own.global_batch_size is None or own.accumulation != config.accumulation:
        raise UserError(
            f"stage {stage.name!r} must state its own batch as a number in global_batch_size, and leave accumulation "
            "as it is: the batch may not follow from the number of devices"
        )
    return own


def check_precision(config: Any, world: World) -> None:
    """Refuse arithmetic that the device does not have."""
    if config.distributed.mixed_precision == "fp16" and world.device.type == "cpu":
        raise UserError("mixed_precision=fp16 needs a GPU; on a CPU use bf16 or none")


def set_precision(config: Any, world: World) -> None:
    """Set how torch multiplies float32, for the whole process. Where the arithmetic is of fewer bits anyway, what is
    left in float32 may use TF32 on a GPU; `none` means true float32."""
    is_reduced = world.device.type == "cuda" and config.distributed.mixed_precision != "none"
    torch.set_float32_matmul_precision("high" if is_reduced else "highest")


def refuse_other_settings(stage: Stage, config: Any, found: Checkpoint | None, rundir: RunDir) -> None:
    """Refuse to resume a stage whose own settings are not those it was trained with so far; those of the whole run were
    compared when it was opened."""
    if stage.config is None or found is None or found.manifest is None:
        return
    before = found.manifest.about["config"]
    names = [
        name
        for name in changed(before, dump(config), type(config))
        if not any(fnmatchcase(name, pattern) for pattern in _MAY_CHANGE)
    ]
    if names:
        raise UserError(
            f"stage {stage.name!r} was trained with other settings so far ({', '.join(names[:5])} differ): its config "
            f"function gives others now; undo that, or start a new run (init_from={rundir.path} keeps the weights)"
        )
