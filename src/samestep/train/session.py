"""A training session: one launch of a recipe on this world, from its run directory to its outcome."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from samestep.checkpoint.background import Flight, Saver
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import find_checkpoints
from samestep.checkpoint.plain import save_weights
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.spread import refuse_newer_elsewhere, shared_probe
from samestep.checkpoint.state import pointer
from samestep.checkpoint.store import Store
from samestep.core import handover
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.logging import start_logging
from samestep.core.records import JsonLines, write_json
from samestep.core.rundir import RunDir
from samestep.train.adopting import adopt
from samestep.train.banner import banner_lines
from samestep.train.bench import Bench
from samestep.train.cadence import CheckCounts, EpochSummary, LogFigures, Save, Validate
from samestep.train.code_changes import CodeChanges
from samestep.train.console import Screen
from samestep.train.divergence import SameParameters
from samestep.train.evidence import Recorder, Returned, Witness
from samestep.train.first_weights import check_start
from samestep.train.learner import Learner
from samestep.train.loop import Every, Outcome, Progress, run
from samestep.train.metrics import Book
from samestep.train.opening import launch_id, open_run, set_status
from samestep.train.plan import seconds
from samestep.train.recipe import Recipe, Stage
from samestep.train.recipe_code import recipe_code
from samestep.train.sinks import Sink, open_sinks
from samestep.train.starting_over import newest_checkpoint
from samestep.train.stop import Stop
from samestep.train.stragglers import Speeds
from samestep.world.seeding import RandomState, seed_everywhere
from samestep.world.watch.dog import Watchdog
from samestep.world.world import World

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """One launch of a recipe."""

    name: str
    recipe: Recipe
    config: Any
    world: World
    benches: list[Bench] = field(default_factory=list)
    """Of the stages that ran so far."""
    start_over: bool = False
    """Whether a stage that lost all its checkpoints may begin again."""
    _code_changes: CodeChanges | None = None

    def train(self) -> Outcome:
        """Run every stage that is not done yet, in order."""
        launches = sorted(set(self.world.gather(launch_id(os.environ))))
        with ExitStack() as stack:
            with self.world.together("opening the run directory"):
                self.rundir = self._open(stack, launches)
            self.screen = stack.enter_context(Screen(self.world.is_main and not self.config.log.quiet))
            self.shared = shared_probe(self.rundir.path, self.world)
            if not self.shared and self.config.distributed.strategy == "fsdp":
                raise UserError(
                    f"the run directory {self.rundir.path} is not seen by all ranks, but every rank of a sharded run "
                    "writes to it; set out=... to a folder on a shared disk, or use distributed.strategy=ddp"
                )
            if not self.shared:
                refuse_newer_elsewhere(self.rundir.checkpoints(""), self.world)
            if self.config.watch.enabled:
                stack.enter_context(Watchdog(self.world, self.rundir, self.config.watch))
            self._event("launch", world=self.world.size, device=str(self.world.device))
            self._tell_code_changes()
            set_up_torch(self.config, self.world)
            limit = seconds(self.config.max_time) - handover.elapsed(os.environ) if self.config.max_time else None
            self.stop = Stop(self.world, limit, self.config.checkpoint.every_minutes * 60)
            with self.stop.listening():
                return self._stages()

    def _stages(self) -> Outcome:
        stages = self._wanted()
        for stage in stages:
            if self.world.share(self._is_done(stage)):
                self.screen.say(f"stage {stage.name!r} is done already")
            elif StageRun(self, stage, stages).run() is Outcome.PREEMPTED:
                self.screen.say(
                    f"stopped by {self.stop.reason}; resume with: samestep train --resume {self.rundir.path}"
                )
                return Outcome.PREEMPTED
            if stage.name == self.config.until and stage is not stages[-1]:
                self._status("waiting", after=stage.name)
                self.screen.say(f"done until here; go on with: samestep train --resume {self.rundir.path} until=null")
                return Outcome.DONE
        self._status("done")
        self.screen.say(f"done: {self.rundir.path}")
        return Outcome.DONE

    def _wanted(self) -> Sequence[Stage]:
        stages = self.recipe.stages(self.config)
        names = [stage.name for stage in stages]
        if self.config.until not in (None, *names):
            raise UserError(f"until={self.config.until} is no stage of {self.name}; choose one of {', '.join(names)}")
        for number, stage in enumerate(stages):
            check_start(stage.name, stage.start, names[:number])
        return stages

    def _open(self, stack: ExitStack, launches: Sequence[str]) -> RunDir:
        """Rank 0 opens the directory; the others learn of it through the store, since it may refuse."""
        told = None
        if self.world.is_main:
            opened = open_run(self.name, self.config, self.world.dp_size, launches, recipe_code(self.name))
            stack.callback(opened.lock.release)
            told, self._code_changes = [str(opened.rundir.path.absolute()), opened.batch], opened.code_changes
        path, batch = self.world.tell("run directory", told)
        rundir = RunDir(Path(path))
        if self.world.place.local_rank == 0:
            handover.tell_run(rundir.path, os.environ)
        self.start_over = self.config.start_over
        # The batch from now on at any world size and batch_size; what acts for this launch alone stands in no record.
        self.config = replace(self.config, global_batch_size=batch, start_over=False)
        show = "error" if self.config.log.quiet else self.config.log.level
        start_logging(rundir.log(self.world.rank), show=show if self.world.is_main else None)
        return rundir

    def _tell_code_changes(self) -> None:
        """Changed code does not end a run, but nobody should have to guess that it changed; only rank 0 knows."""
        if self._code_changes is not None:
            logger.warning("%s", self._code_changes)
            self._event("code_changed", **self._code_changes.to_json())

    @property
    def is_planned(self) -> bool:
        """Whether the numbers of the run are frozen, so that another batch_size leaves it the same run."""
        known = any(bench.known_plan for bench in self.benches)  # the file may lie on rank 0's disk alone
        return known or (hasattr(self, "rundir") and self.rundir.frozen.exists())

    def _is_done(self, stage: Stage) -> bool:
        return self.world.is_main and (self.rundir.artifacts(stage.name) / "done.json").exists()

    def _event(self, kind: str, **details: Any) -> None:
        logger.info("%s %s", kind, details)
        if self.world.is_main:
            JsonLines(self.rundir.events).append({"time": time.time(), "kind": kind, **details})

    def _status(self, status: str, **details: Any) -> None:
        if self.world.is_main:
            set_status(self.rundir, status, **details)


class StageRun:
    """One stage of a session: build, restore, loop, hand over."""

    def __init__(self, session: Session, stage: Stage, stages: Sequence[Stage]) -> None:
        self.session, self.stage, self.is_last = session, stage, stage is stages[-1]
        # Of several stages each has a folder of its own, or one would replace the files of another.
        self.weights = session.rundir.weights / (stage.name if len(stages) > 1 else "")
        self.world, self.config, self.rundir, self.screen = (
            session.world,
            session.config,
            session.rundir,
            session.screen,
        )
        evidence = self.rundir.evidence(self.world.size, self.world.rank)
        recorder = Recorder(evidence, stage.name, self.world.dp_counted)
        self.recorder = recorder if self.config.evidence else None
        self.progress = Progress(watch=self.world.watch)
        self.window, self.epoch = Book(self.world), Book(self.world)
        self.random = RandomState(self.world, self.config.seed)

    def run(self) -> Outcome:
        """From set-up to hand-over."""
        self.world.watch.stage = self.stage.name
        with self.world.together(f"setting up stage {self.stage.name!r}"):
            seed_everywhere(self.config.seed)
            self._find_checkpoint()
            self.bench = self._bench()
            self.task = self.stage.build(self.bench)
            self.progress.steps_per_epoch = self.bench.steps_per_epoch or self.task.length
            self.bench.is_built = True
            self.bench.first_weights.check_taken(self.stage.name, is_last=self.is_last)
            self.random.spread()
            resumed = self._restore()
        self.screen.banner(f"samestep · {self.session.name}", banner_lines(self.session, self, resumed))
        if self.recorder:
            self.recorder.started(self.progress.step, self.world.size)
        self._status("running")
        sinks = self._sinks()
        try:
            with self._saver(sinks) as saver:
                saver.reserve(self.state)
                outcome = self._loop(sinks, saver)
        finally:
            for sink in sinks:
                sink.close()
        if outcome is Outcome.DONE:
            with self.world.watch.doing("finish"):
                self.stage.finish(self.task, self.bench)
                self.world.barrier()
            if self.world.is_main:
                write_json(self.rundir.artifacts(self.stage.name) / "done.json", {"step": self.progress.step})
        self._status(outcome.value, **({"reason": self.session.stop.reason} if outcome is Outcome.PREEMPTED else {}))
        return outcome

    def _find_checkpoint(self) -> None:
        keep = self.config.checkpoint
        figure, mode = self.stage.best or ("", "min")
        self.store = Store(
            self.rundir.checkpoints(self.stage.name),
            self.world,
            keep=Retention(keep.keep_last, keep.keep_best, keep.keep_every, mode, figure),
            shared=self.session.shared,
        )
        self.store.tidy()
        self.found, starts_over = newest_checkpoint(self.store, self.stage.name, self.rundir, self.session.start_over)
        if starts_over:
            self.session._event("start_over", stage=self.stage.name)

    def _bench(self) -> Bench:
        bench = Bench(
            self.world,
            self.config,
            self.rundir,
            self.stage.name,
            self.screen,
            self.session.recipe.unused,
            self.recorder,
            start=self.stage.start,
            unit=self.stage.unit,
            resumed=self.found is not None,
            shared=self.session.shared,
            progress=self.progress,
        )
        self.session.benches.append(bench)
        return bench

    def _restore(self) -> str:
        """Become what the checkpoint holds, or what the user named to go on from; says where that came from."""
        self.state: Mapping[str, Any] = {
            **self.task.state,
            "progress": self.progress,
            "window": self.window,
            "epoch": self.epoch,
            "random": self.random,
        }
        if self.found is None:
            if not self.config.continue_from or not self.bench.first_weights.is_taken_here():
                return ""
            adopt(Path(self.config.continue_from), self.bench.learners, self.progress)
            return self.config.continue_from
        self.bench.first_weights.fill_without_checkpoint(self.bench.learners, self.state.values())
        self.store.load(self.found, self.state)
        self._check_best()
        self.session._event("resume", stage=self.stage.name, step=self.progress.step)
        return self.found.path.name

    def _check_best(self) -> None:
        """The best figure so far is void where an older version went by another one."""
        if self.stage.best is None or self.progress.best is None:
            return
        found = find_checkpoints(self.store.folder) if self.world.is_main else []
        names = [c.figure_name for c in sorted(found, key=lambda c: c.step) if c.figure_name]
        if self.world.share(bool(names) and names[-1] != self.stage.best[0]):
            self.progress.best = None

    def _sinks(self) -> list[Sink]:
        if not self.world.is_main:
            return []
        return open_sinks(self.rundir, self.stage.name, self.progress.step, self.config, dump(self.config))

    def _saver(self, sinks: list[Sink]) -> Saver:
        settings = self.config.checkpoint

        def told(flight: Flight) -> None:
            if flight.committed:
                self.session._event("save", stage=self.stage.name, step=flight.step)
                for sink in sinks:
                    sink.committed(flight.step)
            if flight.failure is not None:
                self.session._event("save_failed", stage=self.stage.name, step=flight.step, why=str(flight.failure))

        return Saver(
            self.store,
            background=settings.background,
            max_failures=settings.max_failures,
            taken=self.progress.step,
            told=told,
        )

    def _loop(self, sinks: list[Sink], saver: Saver) -> Outcome:
        log = LogFigures(
            self.window,
            sinks,
            self.screen,
            self.progress,
            self.config.log.every,
            self.stage.unit,
            self.task.length,
            Speeds(self.bench, self.progress, self.session._event),
        )
        hash_every = 0 if self.recorder else self.config.watch.hash_every  # evidence has a hash of every step
        same = SameParameters(self.bench.learners, self.world, hash_every)
        validate = Validate(self.stage, self.task, log, self.screen, self.progress, self.config.validate_every)
        save = Save(
            saver,
            self.state,
            self._about,
            self.config.checkpoint,
            self.stage,
            self.session.stop,
            self.progress,
            validate,
            self.bench.learners,
            log,
            self._write_weights,
        )
        counts = CheckCounts(self.bench.feeds, self.bench.learners)
        every: list[Every] = [counts, same, log, validate, EpochSummary(self.epoch, self.screen, validate), save]
        if self.recorder:
            every.insert(0, Returned(self.recorder))
            every.insert(-1, Witness(self.recorder, self.task.state, lambda: validate.figures))
        with self.world.watch.stepping(self.stage.name, self.progress.step, compiles=self.config.compile):
            try:
                outcome = run(self.task, self.progress, every, self.session.stop)
                same.finish()
            except BaseException:
                with suppress(Exception):
                    log.rescue()
                raise
        with self.world.watch.doing("save"):
            save.finish()
        return outcome

    def _about(self) -> dict[str, Any]:
        return {"recipe": self.session.name, "stage": self.stage.name, "config": dump(self.config)}

    def _write_weights(self, checkpoint: Path, suffixes: list[str]) -> None:
        for key, part in self.task.state.items() if suffixes else ():
            if isinstance(part, Learner):
                weights = read_tensors(checkpoint, pointer((key, "model")), verify=False)  # it was written just now
                for suffix in suffixes:
                    save_weights(self.weights / f"{part.name}_{suffix}.pt", weights)

    def _status(self, status: str, **more: str) -> None:
        self.session._status(status, stage=self.stage.name, step=self.progress.step, steps=self.task.length, **more)


def set_up_torch(config: Any, world: World) -> None:
    """Arithmetic that the whole process shares."""
    torch.set_default_dtype(getattr(torch, config.distributed.dtype))
    if config.distributed.mixed_precision == "fp16" and world.device.type == "cpu":
        raise UserError("mixed_precision=fp16 needs a GPU; on a CPU use bf16 or none")
    if world.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
