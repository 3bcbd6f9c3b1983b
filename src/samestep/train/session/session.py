"""A training session: one launch of a recipe on this world, from its run directory to its outcome."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from samestep.checkpoint.across_ranks import is_disk_shared, refuse_newer_on_other_hosts
from samestep.core import launch_env
from samestep.core.disk_space import is_disk_full, refusing_full_disk
from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_USER, UserError
from samestep.core.logs import start_logging
from samestep.core.native_output import send_native_output_to
from samestep.core.rundir import RunDir
from samestep.data.records.downloads import download_datasets
from samestep.train.api.loop import Outcome
from samestep.train.api.named_code import named_functions
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.api.trusted_recipes import remember_recipe
from samestep.train.logging.console import Screen
from samestep.train.record.config import AUTO
from samestep.train.record.extension import Extension, LaterLength, read_done, stays_stopped, stopped_early
from samestep.train.record.run_record import (
    CodeChanges,
    discard_files_of_rank,
    discard_run,
    has_results,
    launch_id,
    open_run,
)
from samestep.train.record.run_status import RunEvents
from samestep.train.record.stop import Stop
from samestep.train.session.banner import device_name
from samestep.train.session.context import SessionContext
from samestep.train.session.end_summary import end_summary
from samestep.train.session.recipe_code import recipe_code
from samestep.train.session.stage_config import check_precision, stage_config
from samestep.train.session.stage_run import StageRun
from samestep.train.session.takeover import remove_half_taken, take_over
from samestep.train.weights.first_weights import check_start
from samestep.world.failures import PeerFailed
from samestep.world.watchdog.watchdog import Watchdog
from samestep.world.world import World

logger = logging.getLogger(__name__)


class Session:
    """One launch of a recipe."""

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        config: Any,
        world: World,
        notes: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        """`notes` are sentences about the settings, for rank 0 to show; `command` is recorded."""
        self.config, self._notes, self._command = config, notes, command
        self.rundir: RunDir | None = None
        """None until it is open."""
        self._name, self._recipe, self._world = name, recipe, world
        self._start_over = config.start_over
        self._code: dict[str, str] = {}
        self._code_changes: CodeChanges | None = None
        self._extension: Extension | LaterLength | None = None
        self._context: SessionContext | None = None
        self._running: Stage | None = None
        self._began = 0.0

    def train(self) -> Outcome:
        """Run every stage that is not done yet, in order."""
        self._began = time.monotonic()
        launches = sorted(set(self._world.gather(launch_id(os.environ))))
        max_time = parse_duration(self.config.max_time) if self.config.max_time else None
        limit = launch_env.seconds_left(max_time, os.environ)
        stop = Stop(self._world, limit, self.config.checkpoint.every_minutes * 60)
        with ExitStack() as stack:
            stack.enter_context(stop.handling_signals())  # before there is a status that a signal would leave behind
            out = Path(self.config.out)
            with self._world.together("opening the run directory"), refusing_full_disk(out):
                rundir = self._open(stack, launches)
            self.rundir = rundir
            screen = stack.enter_context(Screen(self._world.is_main and not self.config.log.quiet))
            shared = self._is_shared(rundir)
            if self.config.watch.enabled:
                stack.enter_context(Watchdog(self._world, rundir, self.config.watch))
            events = RunEvents(rundir, self._world.is_main)
            about = {"world": self._world.size, "device": device_name(self._world), "host": self._world.host}
            events.event("launch", **about, command=list(self._command))
            self._report_code_changes(events)
            for note in self._notes:
                logger.warning("%s", note)
            if self._extension is not None:
                screen.print(str(self._extension))
                events.event(self._extension.event, **self._extension.to_json())
            set_up_torch(self.config, self._world)
            self._context = SessionContext(
                self._name,
                self._recipe,
                self.config,
                self._world,
                rundir,
                screen,
                events,
                stop,
                shared,
                self._start_over,
                self._code,
            )
            with stop.agreeing():
                return self._stages(self._context)

    def _stages(self, context: SessionContext) -> Outcome:
        stages, screen, path = self._checked_stages(), context.screen, context.rundir.path
        for stage in stages:
            self._running = stage
            if self._run_stage(context, stage, stages) is Outcome.PREEMPTED:
                return Outcome.PREEMPTED
            if stage.name == self.config.until and stage is not stages[-1]:
                context.events.status("waiting", after=stage.name)
                screen.print(
                    f"stopped after stage {stage.name!r}, as until says; "
                    f"continue with: samestep train --resume {path} until=null"
                )
                return Outcome.DONE
        if self._world.is_main:  # which has just written the records that the status sums up
            context.events.status("done", **stopped_early(context.rundir, [stage.name for stage in stages]))
            seconds = time.monotonic() - self._began
            summary = end_summary(self._recipe, context.rundir, stages, context.benches, seconds)
            screen.banner(f"samestep · {self._name}: done", summary)
        screen.print(f"done: {path}")
        return Outcome.DONE

    def _run_stage(self, context: SessionContext, stage: Stage, stages: Sequence[Stage]) -> Outcome:
        """Run one stage, unless it is done already or taken over from another run."""
        screen = context.screen
        if self._world.share(self._is_done(context, stage, stage is stages[-1])):
            screen.print(f"stage {stage.name!r} is done already")
            return Outcome.DONE
        with self._world.activity.doing("data"):
            download_datasets(stage_config(stage, self.config), self._world)
        if self._take_over(context, stage, stages):
            return Outcome.DONE
        stage_run = StageRun(context, stage, stages)
        outcome = stage_run.run()
        if outcome is Outcome.PREEMPTED:
            where = "" if stage_run.has_stepped else " before the first step of this launch"
            screen.print(
                f"stopped by {context.stop.reason}{where}; resume with: samestep train --resume {context.rundir.path}"
            )
        return outcome

    def _take_over(self, context: SessionContext, stage: Stage, stages: Sequence[Stage]) -> bool:
        """Whether the stage was taken over from another run; all stages before it must have been, too."""
        if not self.config.stages_from:
            return False
        earlier, config = stages[: stages.index(stage)], stage_config(stage, self.config)
        with self._world.activity.doing("data"):
            taken, sentence = take_over(stage, earlier, config, context.rundir, self._code, self._world)
        if sentence:
            context.screen.print(sentence)
            context.events.event("take_over", stage=stage.name, taken=taken, text=sentence)
        return taken

    def _checked_stages(self) -> Sequence[Stage]:
        """The recipe's stages, once `until` and every `start` are known to name one of them."""
        stages = self._recipe.stages(self.config)
        names = [stage.name for stage in stages]
        if self.config.until not in (None, *names):
            raise UserError(
                f"until={self.config.until} is not a stage of {self._name}; choose one of {', '.join(names)}"
            )
        for number, stage in enumerate(stages):
            check_start(stage.name, stage.start, names[:number])
            # Refused now, and not when an earlier stage has trained.
            check_precision(stage_config(stage, self.config), self._world)
        return stages

    def _open(self, stack: ExitStack, launches: Sequence[str]) -> RunDir:
        """Rank 0 opens the directory and shares its path through the store, since opening may fail."""
        shared = None
        if self._world.rank_info.local_rank == 0:
            remember_recipe(self._name)
            for _, module, function in named_functions(self._recipe, self.config):
                remember_recipe(module, function)
        if self._world.is_main:
            self._code, precision = self._source_files(), auto_precision(self.config, self._world)
            stages, version = self._recipe.length_configs, self._recipe.version
            opened = open_run(
                self._name, self.config, self._world.dp_size, launches, self._code, precision, stages, version
            )
            stack.callback(opened.lock.release)
            remove_half_taken(opened.rundir)
            shared = [str(opened.rundir.path.absolute()), opened.batch, opened.precision, opened.is_new]
            self._code_changes, self._extension = opened.code_changes, opened.extension
        path, batch, precision, is_new = self._world.share_through_store("run directory", shared)
        rundir = RunDir(Path(path))
        if is_new:
            stack.push(partial(self._discard, rundir))
        if self._world.rank_info.local_rank == 0:
            launch_env.write_run_path(rundir.path, os.environ)
        # The same batch and arithmetic from now on, wherever it is resumed; the last two are for this launch alone.
        fixed = {"distributed": replace(self.config.distributed, mixed_precision=precision), "global_batch_size": batch}
        self.config = replace(self.config, **fixed, start_over=False, extend=False)
        show = "error" if self.config.log.quiet else self.config.log.level
        send_native_output_to(rundir.log(self._world.rank))
        start_logging(rundir.log(self._world.rank), show=show if self._world.is_main else None)
        return rundir

    def _source_files(self) -> dict[str, str]:
        """The hashes of the files of the recipe, and of the code that settings name, by file name."""
        code = recipe_code(self._name)
        for setting, module, _ in named_functions(self._recipe, self.config):
            for file, found in recipe_code(module).items():
                is_other = code.get(file, found) != found  # a file of the recipe has the same name
                code[f"{setting}: {file}" if is_other else file] = found
        return code

    def _discard(
        self, rundir: RunDir, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove a new run that a mistake of the user, or a full disk, has ended before its first step."""
        try:
            self._world.raise_peer_failure()  # else this rank may know no more than that a connection broke
        except PeerFailed as first:
            error = first
        is_mistake = getattr(error, "exit_code", None) == EXIT_USER or is_disk_full(error)
        benches = self._context.benches if self._context else []
        if not is_mistake or any(bench.progress.step for bench in benches) or has_results(rundir):
            return
        self.rundir = None  # no rank reports into it any more
        if self._world.is_main:
            discard_run(rundir)
            launch_env.forget_run_path(os.environ)
        else:
            discard_files_of_rank(rundir, self._world.rank)

    def _is_shared(self, rundir: RunDir) -> bool:
        """Whether all ranks see the run directory; refuses settings that need it where they do not."""
        shared = is_disk_shared(rundir.path, self._world)
        if not shared and self.config.distributed.strategy == "fsdp":
            raise UserError(
                f"the run directory {rundir.path} is not seen by all ranks, but every rank of a sharded run "
                "writes to it; set out=... to a folder on a shared disk, or use distributed.strategy=ddp"
            )
        if not shared:
            refuse_newer_on_other_hosts(rundir.checkpoints(""), self._world)
        return shared

    def _report_code_changes(self, events: RunEvents) -> None:
        """Warn about changed code, which does not end a run; only rank 0 knows of it."""
        if self._code_changes is not None:
            logger.warning("%s", self._code_changes)
            events.event("code_changed", **self._code_changes.to_json())

    def own_batch_size(self) -> str:
        """The name of the stage that runs now, if its micro-batches do not follow the run's batch_size; else empty."""
        stage, config = self._running, self.config
        if stage is None or stage.config is None:
            return ""
        if config.batch_size == AUTO:
            return "" if stage_config(stage, config).batch_size == AUTO else stage.name
        doubled = replace(config, batch_size=2 * config.batch_size)
        follows = stage_config(stage, doubled).batch_size > stage_config(stage, config).batch_size
        return "" if follows else stage.name

    @property
    def batch_size(self) -> int:
        """The rows of a micro-batch of the stage that runs now."""
        benches = self._context.benches if self._context else []
        rows: int = (benches[-1] if benches else self).config.rows_at_once
        return rows

    @property
    def is_planned(self) -> bool:
        """Whether the numbers of the run are frozen, so that another batch_size leaves it the same run."""
        benches = self._context.benches if self._context else []
        known = any(bench.known_plan for bench in benches)  # the file may be on rank 0's disk alone
        return known or (self.rundir is not None and self.rundir.first_launch.exists())

    def _is_done(self, context: SessionContext, stage: Stage, is_last: bool) -> bool:
        """Whether there is nothing left to do, as rank 0 knows. The last stage goes on if it stopped early, and the
        settings have changed since."""
        done = read_done(context.rundir, stage.name) if self._world.is_main else None
        config = self._recipe.stage_configs(self.config)[stage.name]
        if done is None or not is_last or stays_stopped(done, config):
            return done is not None
        context.events.status("running", stage=stage.name)
        context.rundir.done(stage.name).unlink()
        return False


def auto_precision(config: Any, world: World) -> str:
    """What mixed_precision=auto means here: bf16 on GPUs whose hardware has it."""
    has_bf16 = world.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 and config.distributed.dtype == "float32" else "none"


def set_up_torch(config: Any, world: World) -> None:
    """Set torch's arithmetic for the whole process."""
    torch.set_default_dtype(getattr(torch, config.distributed.dtype))
    check_precision(config, world)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
