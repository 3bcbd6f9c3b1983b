"""The validation of a trained stage once more: `samestep evaluate` for recipes that have no such verb of their own.

The stage is built and restored as when a run is resumed, in a copy of its run directory, so nothing is written to the
run: it may still be training. The copy's checkpoints are links, and of this stage there is only the one that is meant.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.data.split import PART_NOTES
from samestep.train.api.recipe import NoOptions, Stage, Verb, no_validation
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import MetricValues
from samestep.train.record.run_status import RunEvents
from samestep.train.record.stop import Stop
from samestep.train.session.context import SessionContext
from samestep.train.session.stage_run import StageRun
from samestep.train.trained.held_out import VALIDATION, changed_settings, show_metrics
from samestep.train.trained.network_building import TrainedStage, copy_run, find_stage
from samestep.train.trained.trained_model import Trained
from samestep.train.weights.sources import is_checkpoint
from samestep.world.world import World


def validate_trained(trained: Trained, options: NoOptions, world: World) -> dict[str, Any]:
    """The validation metrics of a checkpoint, on every rank. Its settings may name other data than the run's."""
    stage = _stage_of(trained)
    config = replace(trained.config, log=replace(trained.config.log, samples=0))  # they are those of the training
    with _copy_of_run(trained, world) as rundir:
        context = SessionContext(
            name=trained.name,
            recipe=trained.recipe,
            config=config,
            world=world,
            rundir=rundir,
            screen=Screen(False),
            events=RunEvents(rundir, world.is_main),
            stop=Stop(world),
            is_disk_shared=True,
            start_over=False,
        )
        ready = StageRun(context, stage, trained.recipe.stages(config)).set_up()
        ready.bench.sample_logs = ()
        step = ready.loop.progress.step
        metrics: MetricValues = stage.validate(ready.task, ready.loop.progress.tick_of(step - 1))
    others = changed_settings(trained)
    note = f"with other settings than the run's: {', '.join(others)}" if others else PART_NOTES[VALIDATION]
    return {"part": VALIDATION, "stage": stage.name, "step": step, **metrics, "notes": [note]}


VALIDATE = Verb(validate_trained, show=show_metrics)
"""Stands in for the verb `evaluate` where a recipe has none."""


def _stage_of(trained: Trained) -> Stage:
    if trained.run is None or not is_checkpoint(trained.source):
        raise UserError(f"Name the run, or a checkpoint in it, instead of {trained.source}: its validation is there.")
    stage = find_stage(TrainedStage(trained.recipe, trained.name, trained.config, trained.stage))
    if stage.validate is no_validation:
        raise UserError(
            f"Stage {stage.name!r} of {trained.name} does not validate; give it Stage(validate=...), or the recipe a "
            f"Verb for `evaluate`, or name another stage with --stage."
        )
    return stage


@contextmanager
def _copy_of_run(trained: Trained, world: World) -> Iterator[RunDir]:
    """A copy that all ranks see, made by rank 0."""
    assert trained.run is not None
    with ExitStack() as stack:
        with world.together("copying what the stage reads"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="samestep-")) if world.is_main else ""
            if world.is_main:
                copy_run(trained.run, RunDir(Path(folder) / "run"), trained.stage, trained.source)
        found = Path(world.share(folder)) / "run"
        with world.together("opening the copy of the run"):
            if not found.is_dir():
                raise UserError("Set TMPDIR to a folder that all nodes see: a copy of the run is made there.")
        with world.together("the validation"):  # before rank 0 removes it
            yield RunDir(found)
