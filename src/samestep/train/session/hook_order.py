"""The hooks of a stage, in the order in which they run after every step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.checkpoint.background import Saver
from samestep.checkpoint.state import Stateful
from samestep.core.config import dump
from samestep.train.api.loop import Hook
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.logging.metrics import Metrics, MetricValues
from samestep.train.logging.sinks import Sink
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.context import ReadyStage, SessionContext
from samestep.train.session.hooks.divergence import SameParameters
from samestep.train.session.hooks.first_step import FirstStep
from samestep.train.session.hooks.metric_logging import LogMetrics
from samestep.train.session.hooks.profiling import Profile, make_profile
from samestep.train.session.hooks.saving import Save
from samestep.train.session.hooks.step_start import StepStart
from samestep.train.session.hooks.stragglers import RankSpeeds
from samestep.train.session.hooks.validation import AddLosses, EpochSummary, Validate
from samestep.train.weights.run_checkpoints import BASES


@dataclass(frozen=True)
class RecordReturned:
    """A hook that records that the task's step has returned. It distinguishes a rank that left a step early from those
    that wait in it; it must be the first hook."""

    recorder: EvidenceRecorder

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The task's step has returned."""
        self.recorder.returned(tick.step)


@dataclass(frozen=True)
class RecordStep:
    """A hook that writes the last line of every step of the loop; it must come before the save."""

    recorder: EvidenceRecorder
    state: Mapping[str, Stateful]
    validation: Callable[[], MetricValues]
    """The validation metrics of this step, on this rank."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        self.recorder.step(tick.step, self.state, self.validation())


@dataclass(frozen=True)
class Hooks:
    """All hooks in order, and those that the stage needs by name afterwards."""

    in_order: list[Hook]
    log: LogMetrics
    validate: Validate
    same_parameters: SameParameters
    save: Save
    profile: Profile | None
    step_start: StepStart
    first_step: FirstStep

    def validate_again(self, progress: Progress, length: int) -> None:
        """Validate the last step, whose validation failed in an earlier launch, and do what comes after it. The metrics
        of the step itself are gone; what the runtime adds up of them is part of the state."""
        for hook in self.in_order[self.in_order.index(self.validate) :]:
            hook.after_step(progress.tick_of(progress.step - 1), {}, last=progress.has_ended(length))


def assemble_hooks(
    context: SessionContext,
    ready: ReadyStage,
    sinks: list[Sink],
    saver: Saver,
    is_only_stage: bool,
    is_last_stage: bool,
) -> Hooks:
    stage, bench, progress = ready.stage, ready.bench, ready.loop.progress
    config = bench.config  # the stage's own
    event = context.events.event
    log = LogMetrics(
        ready.loop.row_metrics,
        sinks,
        context.screen,
        progress,
        config.log.every,
        stage.unit,
        ready.task.length,
        RankSpeeds(bench, progress, event),
        stage.name,
        stage.shown,
    )
    hash_every = 0 if ready.recorder else config.watch.hash_every  # evidence has a hash of every step
    same_parameters = SameParameters(bench.learners, context.world, hash_every)
    validate = Validate(stage, ready.task, log, context.screen, progress, context.world, config, event)
    about: dict[str, Any] = {"recipe": context.name, "stage": stage.name, "config": dump(config), "code": ready.code}
    if bench.frozen_networks.hashes:
        about["frozen"] = bench.frozen_networks.hashes
    if bases := bench.first_weights.bases.paths:
        about[BASES] = {name: str(path.absolute()) for name, path in bases.items()}
    # With several stages each has a folder of its own, or one would replace the files of another.
    weights = context.rundir.weights / ("" if is_only_stage else stage.name)
    save = Save(
        saver,
        ready.state,
        about,
        config.checkpoint,
        stage,
        context.stop,
        progress,
        validate,
        bench.learners,
        log,
        weights,
        # Later stages begin with its best weights, or measure them: these must be on the disk.
        config.best_at_end or config.validate_at_start or not is_last_stage,
    )
    validate.save_state = save.before_failure
    traces = context.rundir.profile(stage.name)
    profile = make_profile(config, context.world, traces, progress, ready.task.length, context.screen)
    first_step = FirstStep(bench.feeds.made, bench.feeds.counted, bench.learners, context.world, bench.compile_notice)
    step_start = StepStart(context.stop, ready.state, ready.loop.random, context.world)
    in_order: list[Hook] = [
        *([RecordReturned(ready.recorder)] if ready.recorder else []),  # before any hook that waits for other ranks
        first_step,
        log,
        AddLosses(ready.loop.epoch_metrics),
        validate,  # hooks after it are told when it ends the stage
        EpochSummary(ready.loop.epoch_metrics, context.screen, validate),
        *ready.hooks,
        same_parameters,
        *([profile] if profile else []),
        *([RecordStep(ready.recorder, ready.recipe_state, lambda: validate.values)] if ready.recorder else []),
        save,  # the checkpoint has all that the other hooks change in the state
        step_start,
    ]
    return Hooks(in_order, log, validate, same_parameters, save, profile, step_start, first_step)
