"""One stage of a session: set it up, restore it, train it, and hand over to the next."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from samestep.checkpoint.background import PendingSave, Saver
from samestep.checkpoint.manifest import Checkpoint, find_checkpoints
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.store import Store
from samestep.core.disk_space import refusing_full_disk
from samestep.core.json_files import Json, write_json
from samestep.train.api.bench import Bench
from samestep.train.api.loop import Hook, Outcome, Task, run
from samestep.train.api.recipe import Stage
from samestep.train.api.recipe_checks import check_hooks, check_task
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.learner.preparation import may_compile
from samestep.train.logging.sample_log import SampleLog
from samestep.train.logging.sinks import Sink
from samestep.train.record.improvement import Patience, check_improvement_settings
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.banner import banner_lines
from samestep.train.session.batch_size import StageBatchSize
from samestep.train.session.context import LoopState, ReadyStage, SessionContext
from samestep.train.session.continue_from_file import continue_from_file
from samestep.train.session.hook_order import Hooks, assemble_hooks
from samestep.train.session.missing_file import missing_file
from samestep.train.session.recipe_code import code_hash
from samestep.train.session.stage_config import refuse_other_settings, set_precision, stage_config
from samestep.train.session.stage_sinks import open_stage_sinks
from samestep.train.session.stage_state import checkpoint_to_resume, refuse_unsaved, state_of_recipe, take_back_best
from samestep.train.session.takeover import done_record
from samestep.train.session.validation_trial import try_validation
from samestep.world.seeding import seed_everywhere


class StageRun:
    """One stage of a session."""

    def __init__(self, context: SessionContext, stage: Stage, stages: Sequence[Stage]) -> None:
        self._context, self._stage, self._stages = context, stage, stages
        self._is_last, self._is_only = stage is stages[-1], len(stages) == 1
        self._world, self._config, self._rundir = context.world, stage_config(stage, context.config), context.rundir
        self._progress = Progress(activity=self._world.activity)
        self._batch_size = StageBatchSize(context, stage.name)
        self.has_stepped = False
        """Whether this launch has done a step of it."""

    def run(self) -> Outcome:
        """From set-up to hand-over."""
        self._world.activity.stage = self._stage.name
        setting_up = self._world.together(f"setting up stage {self._stage.name!r}")
        with self._context.stop.setting_up(), setting_up, refusing_full_disk(self._rundir.path):
            ready = self.set_up()
            self._config = self._batch_size.measured(ready)
        first = self._progress.step
        lines = banner_lines(self._context.recipe, ready.bench, ready.task.length, ready.resumed)
        self._context.screen.banner(f"samestep · {self._context.name}", lines)
        self._status(ready, "running")
        about = {"stage": self._stage.name, "step": first, "steps": ready.task.length, "unit": self._stage.unit}
        self._context.events.event("stage", **about)
        sinks = self._sinks(ready.bench)
        try:
            ready.store.require_space(ready.state)
            with self._saver(ready.store, sinks) as saver:
                saver.reserve(ready.state)
                outcome = self._loop(ready, sinks, saver)
            if outcome is Outcome.DONE:
                self._say_skipped(ready)
                self._hand_over(ready)
        finally:
            for log in ready.bench.sample_logs or ():
                log.close()
        self.has_stepped = self._progress.step > first
        stopped = {"reason": self._context.stop.reason} if outcome is Outcome.PREEMPTED else {}
        self._status(ready, outcome.value, **stopped)
        return outcome

    def set_up(self) -> ReadyStage:
        """Build the task, and load the checkpoint, or the file that the user named to continue from."""
        seed_everywhere(self._config.seed)
        set_precision(self._config, self._world)
        self._config = self._batch_size.known(self._config)
        store = self._store()
        found = self._find_checkpoint(store)
        loop = LoopState.new(self._progress, self._world, self._config.seed)
        bench = self._bench(resumed=found is not None)
        with self._context.screen.doing(f"stage {self._stage.name!r}: opening data and model"):
            task, hooks = self._build(bench)
        loop.random.seed_this_rank()
        artifacts = {f"artifact {name}": artifact for name, artifact in bench.array_artifacts.items()}
        own_state = {**artifacts, **bench.feeds.places(), **loop.parts()}
        recipe_state = state_of_recipe(self._stage.name, task, hooks, taken=own_state)
        if _trains(bench):  # a stage that only computes may do so with a learner's network
            refuse_unsaved(self._stage.name, bench.learners, recipe_state)
        state = {**recipe_state, **own_state}
        source = found.path.name if found is not None else "the weights to continue from"
        with self._context.screen.doing(f"stage {self._stage.name!r}: loading {source}"):
            resumed = self._restore(store, found, state, bench)
        code = code_hash(self._context.code)
        code = code if found is None or found.about.get("code") == code else ""
        return ReadyStage(self._stage, bench, task, hooks, store, loop, recipe_state, state, resumed, code)

    def _build(self, bench: Bench) -> tuple[Task, Sequence[Hook]]:
        """The task and the hooks that the recipe makes, checked."""
        try:
            task: Task = self._stage.build(bench)
        except FileNotFoundError as error:
            if (sentence := missing_file(error, self._config)) is None:
                raise
            raise sentence from error
        check_task(self._stage.name, task)
        plan = bench.known_plan
        self._progress.steps_per_epoch = plan.steps_per_epoch if plan else task.length
        bench.is_built, bench.feeds.compares_data = True, False
        bench.first_launch.begin()
        bench.first_weights.check_source_used(is_last=self._is_last)
        check_improvement_settings(bench.config, self._stage.name, self._stage.best, _trains(bench))
        self._progress.improvement.patience = Patience.of(bench.config, self._stage.best)
        hooks = self._stage.hooks(task, bench)
        check_hooks(self._stage.name, hooks)
        return task, hooks

    def _store(self) -> Store:
        keep = self._config.checkpoint
        metric, mode = self._stage.best or ("", "min")
        store = Store(
            self._rundir.checkpoints(self._stage.name),
            self._world,
            keep=Retention(keep.keep_last, keep.keep_best, keep.keep_every, mode, metric),
            shared=self._context.is_disk_shared,
        )
        store.remove_leftovers()
        return store

    def _find_checkpoint(self, store: Store) -> Checkpoint | None:
        found, starts_over = checkpoint_to_resume(store, self._stage.name, self._rundir, self._context.start_over)
        if starts_over:
            self._context.events.event("start_over", stage=self._stage.name)
        refuse_other_settings(self._stage, self._config, found, self._rundir)
        return found

    def _bench(self, *, resumed: bool) -> Bench:
        evidence = self._rundir.evidence(self._world.size, self._world.rank)
        recorder = (
            EvidenceRecorder(evidence, self._stage.name, self._world.dp_counted) if self._config.evidence else None
        )
        bench = Bench(
            self._world,
            self._config,
            self._rundir,
            self._stage.name,
            self._context.screen,
            self._context.recipe.unused,
            recorder,
            start=self._stage.start,
            unit=self._stage.unit,
            resumed=resumed,
            shared=self._context.is_disk_shared,
            progress=self._progress,
            stop=self._context.stop,
        )
        bench.stage_plan.batch_size_note = self._batch_size.note
        self._context.benches.append(bench)
        return bench

    def _restore(self, store: Store, found: Checkpoint | None, state: dict[str, Any], bench: Bench) -> str:
        """Load the checkpoint, or the file that the user named to continue from; returns where the state came from."""
        if found is None:
            if not self._config.continue_from or not bench.first_weights.is_source_used():
                return ""
            continue_from_file(Path(self._config.continue_from), bench.learners, self._progress)
            return str(self._config.continue_from)
        bench.first_weights.fill_without_checkpoint(bench.learners, state.values())
        store.load(found, state)
        self._check_best(store)
        self._context.events.event("resume", stage=self._stage.name, step=self._progress.step)
        return found.path.name

    def _check_best(self, store: Store) -> None:
        """Forget the best value so far where the checkpoints were chosen by another metric."""
        if self._stage.best is None or self._progress.best is None:
            return
        found = find_checkpoints(store.folder) if self._world.is_main else []
        names = [c.metric_name for c in sorted(found, key=lambda c: c.step) if c.metric_name]
        if self._world.share(bool(names) and names[-1] != self._stage.best[0]):
            self._progress.best = self._progress.improvement.best = None

    def _sinks(self, bench: Bench) -> list[Sink]:
        bench.sample_logs = []
        if not self._world.is_main:
            return []
        written = self._progress.step if bench.resumed else self._progress.step - 1  # the start is validated again
        log = SampleLog(self._rundir, self._stage.name, written, self._config.log.samples)
        log.sinks = open_stage_sinks(self._context, self._stage, self._stages, self._config, written)
        bench.sample_logs = [log]
        return log.sinks

    def _saver(self, store: Store, sinks: list[Sink]) -> Saver:
        settings, event = self._config.checkpoint, self._context.events.event

        def on_end(save: PendingSave) -> None:
            if save.committed:
                event("save", stage=self._stage.name, step=save.step)
                for sink in sinks:
                    sink.committed(save.step)
            if save.failure is not None:
                event("save_failed", stage=self._stage.name, step=save.step, why=str(save.failure))

        return Saver(
            store,
            background=settings.background,
            max_failures=settings.max_failures,
            last_step=self._progress.step,
            on_end=on_end,
        )

    def _loop(self, ready: ReadyStage, sinks: list[Sink], saver: Saver) -> Outcome:
        hooks = assemble_hooks(self._context, ready, sinks, saver, self._is_only, self._is_last)
        profiling = hooks.profile.running() if hooks.profile else nullcontext()
        compiles = may_compile(ready.bench.config, self._world)
        stepping = self._world.activity.stepping(self._stage.name, self._progress.step, compiles=compiles)
        with stepping, profiling:
            try:
                begin = partial(self._begin, ready, hooks)
                outcome = run(ready.task, self._progress, hooks.in_order, self._context.stop, begin)
                hooks.same_parameters.finish()
            except BaseException:
                with suppress(Exception):
                    hooks.log.write_ready_rows()
                raise
        with self._world.activity.doing("save"):
            if self._context.stop.left_step and not hooks.step_start.restore():
                hooks.save.finish_without()
                step = self._progress.current
                inside = f"inside step {step}, which had changed its state or was the first one"
                where = inside if step else "before the first step"
                self._context.screen.print(f"stopped {where}: nothing new is saved, the last checkpoint counts")
            else:
                hooks.save.finish()
        return outcome

    def _begin(self, ready: ReadyStage, hooks: Hooks) -> None:
        """What comes before the first step of this launch."""
        if self._progress.is_unvalidated:
            hooks.validate_again(self._progress, ready.task.length)
        if ready.bench.config.validate_at_start and not ready.bench.resumed:
            hooks.validate.at_start()
            hooks.save.at_start()
        elif not ready.bench.resumed:
            with self._context.screen.doing("trying the validation on one batch before the first step"):
                try_validation(ready, self._first_validation(ready))
        if ready.recorder:  # only now: a launch that resumes at the start does not validate it
            ready.recorder.started(self._progress.step, self._world.size)
        if hooks.profile:
            hooks.profile.start_if_due()
        hooks.first_step.begin()
        self._context.screen.begin(self._stage.name, self._progress.step, ready.task.length)

    def _first_validation(self, ready: ReadyStage) -> Tick:
        """The step after which the stage first validates."""
        every = ready.bench.config.validate_every or self._progress.steps_per_epoch
        return self._progress.tick_of(min(every, ready.task.length) - 1)

    def _say_skipped(self, ready: ReadyStage) -> None:
        for learner in ready.bench.learners:
            if sentence := learner.skipped_steps.summary():
                self._context.screen.print(sentence)

    def _hand_over(self, ready: ReadyStage) -> None:
        """Write what a later stage, or the user, needs of this one."""
        with self._world.activity.doing("finish"):
            for artifact in ready.bench.array_artifacts.values():
                artifact.finish()
            if ready.bench.config.best_at_end and self._stage.best:
                take_back_best(ready, self._context.screen)
            self._stage.finish(ready.task, ready.bench)
            self._world.barrier()
        if self._world.is_main:
            code = self._context.code if ready.code else None
            record = done_record(self._progress.step, self._config, code)
            write_json(self._rundir.done(self._stage.name), {**record, **_early_end(ready)})

    def _status(self, ready: ReadyStage, status: str, **more: str) -> None:
        steps = {"step": self._progress.step, "steps": ready.task.length}
        self._context.events.status(status, stage=self._stage.name, **steps, **more)


def _trains(bench: Bench) -> bool:
    return bench.known_plan is not None and bool(bench.learners)


def _early_end(ready: ReadyStage) -> dict[str, Json]:
    """What done.json also holds of a stage that stopped early."""
    improvement = ready.loop.progress.improvement
    if ready.loop.progress.step >= ready.task.length:
        return {}
    return {"stopped_early": improvement.describe(), "waited": improvement.waited}
