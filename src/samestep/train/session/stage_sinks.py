"""Where a stage's metrics are written, with the settings that are shown beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.core.config import dump
from samestep.train.api.recipe import Stage
from samestep.train.logging.sinks import Sink, open_sinks
from samestep.train.record.config import Config
from samestep.train.session.context import SessionContext
from samestep.train.trained.shown import flat_values, shown_settings


def open_stage_sinks(
    context: SessionContext, stage: Stage, stages: Sequence[Stage], config: Config, step: int
) -> list[Sink]:
    """On rank 0 what the settings ask for, continued after `step`; on other ranks nothing. `config` is the stage's."""
    if not context.world.is_main:
        return []
    own = dict(flat_values(shown_settings(dump(config))))
    bests = {each.name: each.best for each in stages if each.best is not None}
    run_settings = shown_settings(dump(context.config)) | _differing(own, context.config, stage.name)
    return open_sinks(context.rundir, stage.name, step, config, own, run_settings, bests)


def _differing(own: Mapping[str, Any], config: Config, stage: str) -> dict[str, Any]:
    """What a stage has otherwise than the run, under the names that its metrics have at W&B."""
    runs = dict(flat_values(shown_settings(dump(config))))
    return {f"{stage}/{name}": value for name, value in own.items() if name not in runs or value != runs[name]}
