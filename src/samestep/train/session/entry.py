"""The entry of every worker: meet the other ranks, train, and end with an exit report and the right exit code."""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from samestep.core import launch_env
from samestep.core.config import build, dump
from samestep.core.disk_space import describe_full_disk, is_disk_full, no_space
from samestep.core.errors import (
    EXIT_DONE,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_MEMORY,
    EXIT_PREEMPTED,
    DiskFailed,
    OutOfMemory,
    RunFailed,
    UserError,
    path_error,
    print_error,
)
from samestep.core.exit_report import ExitReport
from samestep.core.launch_env import preempted_code
from samestep.core.logs import FAILURES, start_logging
from samestep.core.open_files import PER_RANK, SpareFiles, is_too_many_files, require_open_files, too_many_open_files
from samestep.core.output import print_safely
from samestep.core.status import set_stopped
from samestep.core.stop_signals import heeded
from samestep.data.worker_queue import lost_worker
from samestep.train.api.loop import Outcome
from samestep.train.api.named_code import require_own_code
from samestep.train.api.recipe_registry import find_recipe
from samestep.train.record.run_status import write_exit_report
from samestep.train.record.stop import StoppedEarly
from samestep.train.session.session import Session
from samestep.train.session.start import Configured, StartArguments, require_same_start
from samestep.world.failures import PeerFailed
from samestep.world.frames import DifferentMessages
from samestep.world.memory import is_out_of_memory
from samestep.world.watchdog.mpiexec import end_mpiexec_later
from samestep.world.world import World


def memory_sentence(error: BaseException, batch_size: int) -> str:
    """What happened, with the first two sentences of torch's message."""
    message = ". ".join(str(error).split(". ")[:2]).strip().rstrip(".")
    return f"out of memory with batch_size {batch_size} ({type(error).__name__}{': ' if message else ''}{message})"


def memory_advice(batch_size: int, run: Path) -> str:
    """What to do about it by hand."""
    if batch_size == 1:
        return "and no smaller one exists; use a smaller model, shorter rows, or distributed.strategy=fsdp"
    return f"half of it leaves the run the same: samestep train --resume {run} --batch_size {batch_size // 2}"


logger = logging.getLogger(FAILURES)
LAST_RANK_WAIT = 5.0
"""Seconds that rank 0 waits for the others to end before it."""
FAILED_START_WAIT = 30.0
"""The same for a failure before training, since ranks may start late; it is also how long others look for rank 0."""
OTHER_LINE_WAIT = 2.0
"""Seconds that a rank waits for the line of another that does not do the same."""
_ENDED_COUNT = "samestep/gone"
_SHOWN = "samestep/shown"
_LINE = "samestep/line/{}"


def enter(read_start: Callable[[], StartArguments]) -> int:
    """Train what every rank was started with; exit code 0 done, 2 user error, 75 preempted and resumable."""
    start_logging(None, show=None)  # until there is a run directory to log to
    world, session = World.single(), None
    spare = SpareFiles()
    try:
        start = _read(read_start)
        world = _rendezvous(start)
        with world.together("reading the configuration"):
            if isinstance(start, Exception):
                raise start
            require_open_files(PER_RANK * (world.size - 1), f"a run of {world.size} ranks")
            config, notes = _config_of_rank_0(start, world)
        world.connect(config.distributed.device, config.distributed.backend, config.distributed.timeout)
        session = Session(start.name, start.recipe, config, world, notes, start.command)
        outcome = session.train()
        _ignore_signals()
        world.leave()
    except BaseException as error:
        _ignore_signals()
        spare.close()
        if stopped := _early_stop(error, world):
            return _stopped_early(stopped, world, session)
        code = _failed(error, world, session)
        if session is None:
            _end_start_together(world)
        end_mpiexec_later(os.environ)
        return code
    finally:
        spare.close()
    return EXIT_DONE if outcome is Outcome.DONE else _stopped(world)


def _read(read_start: Callable[[], StartArguments]) -> StartArguments | Exception:
    """What this rank was started with, or why that cannot be read: the peers are told before this rank ends."""
    try:
        return read_start()
    except Exception as error:
        return error


def _rendezvous(start: StartArguments | Exception) -> World:
    """Meet the other ranks. A rank that cannot start only looks for them to tell them, and not for long."""
    try:
        world = World.rendezvous(FAILED_START_WAIT if isinstance(start, Exception) else None)
    except UserError:
        if isinstance(start, Exception):
            raise start from None
        raise
    if world.rank_info.job:
        os.environ["RANK"] = str(world.rank)  # for error messages and exit reports, which have no world
    return world


def _config_of_rank_0(start: StartArguments, world: World) -> Configured:
    """The configuration that rank 0 makes, on every rank: a run to resume may be on rank 0's disk alone."""
    require_same_start(world, start.name, start.settings)
    made = start.config() if world.is_main else None
    data = world.share_through_store("settings", dump(made.config) if made else None)
    if made is None:
        made = Configured(build(start.recipe.config, data))
        require_own_code(start.recipe, made.config, start.settings, Path(made.config.out))
    return made


def train_with(recipe: str, config: Mapping[str, Any]) -> int:
    """Train with a configuration given as plain data: for workers that another program starts."""

    def read_start() -> StartArguments:
        found = find_recipe(recipe)
        return StartArguments(recipe, found, dict(config), lambda: Configured(build(found.config, config)))

    return enter(read_start)


def _stopped(world: World) -> int:
    """The exit code of a rank of a run that stopped as requested.

    srun and mpiexec kill all ranks as soon as one ends with a code other than 0, and report the kill. Under them the
    others therefore end first, at once and with 0, and rank 0 ends with the code of the run.
    """
    if not world.rank_info.job:
        return preempted_code(os.environ)
    if world.is_main:
        _wait_for_others(world, LAST_RANK_WAIT)
        return EXIT_PREEMPTED
    sys.stdout.flush()
    sys.stderr.flush()
    world.store.add(_ENDED_COUNT, 1)
    os._exit(EXIT_DONE)


def _wait_for_others(world: World, seconds: float) -> None:
    """Rank 0 holds the store, through which the others learn how the run ended: it stays until they have counted."""
    _wait_until(lambda: world.store.add(_ENDED_COUNT, 0) >= world.size - 1, seconds)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not (is_met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return is_met


def _end_start_together(world: World) -> None:
    """After a failure before training: launchers may end all ranks with the first one, or none of them.

    So no rank ends before rank 0 has shown why, and rank 0 stays for those that have not met it yet. Our own launcher
    shows it itself.
    """
    if world.store is None or launch_env.FOLDER in os.environ:
        return
    with suppress(Exception):  # the store is gone, and with it rank 0
        if world.is_main:
            world.store.set(_SHOWN, "1")
            if world.rank_info.job:
                _wait_for_others(world, FAILED_START_WAIT)
        else:
            _wait_until(lambda: world.store.check([_SHOWN]), FAILED_START_WAIT)
            world.store.add(_ENDED_COUNT, 1)


def _ignore_signals() -> None:
    """The outcome is decided: a signal now must not change it."""
    for number in heeded():
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises, wherever the process is, for a lost worker


def _early_stop(error: BaseException, world: World) -> StoppedEarly | None:
    """The stop before the first step of which `error` tells, or follows; None: it is a failure."""
    if isinstance(error, StoppedEarly):
        world.report_failure(error)  # the peers may have no signal: they end with this one's code
        return error
    try:
        world.raise_peer_failure()
    except PeerFailed as first:
        error = first
    stopped = isinstance(error, PeerFailed) and error.exit_code == EXIT_PREEMPTED
    return StoppedEarly("a signal to another rank") if stopped else None


def _stopped_early(stop: StoppedEarly, world: World, session: Session | None) -> int:
    """The exit code of a rank that was stopped before the first step; rank 0 says so."""
    logger.error("%s", stop)
    if world.is_main:
        print_error(str(stop))
        if session is not None and session.rundir is not None:
            with suppress(OSError):
                set_stopped(session.rundir, stop.reason)
    with suppress(RuntimeError):  # the store is gone
        return _stopped(world)
    return preempted_code(os.environ)


def _failed(error: BaseException, world: World, session: Session | None) -> int:
    """The exit code of a failure, which is reported to the peers and shown to the user."""
    if is_out_of_memory(error):
        return _out_of_memory(error, world, session)
    if is_disk_full(error):
        error = _disk_full(error, session)
    elif is_too_many_files(error):
        logger.error("%s", error, exc_info=error)
        error = too_many_open_files()
    elif lost := lost_worker(error):
        error = lost
    elif sentence := path_error(error):
        logger.error("%s", error, exc_info=error)  # the log has the place in the code
        error = sentence
    if isinstance(error, DifferentMessages):
        error = _with_line_of_other(error, world)
    if not isinstance(error, UserError | RunFailed | PeerFailed):
        try:
            world.raise_peer_failure()  # a broken connection only follows from what a peer reported
        except PeerFailed as first:
            error = first
    world.report_failure(error)
    if isinstance(error, KeyboardInterrupt):
        error = RunFailed("interrupted twice: ended at once, without a save")
        report = replace(ExitReport.from_error(error, EXIT_INTERRUPTED, plain=True), kind="interrupted")
        print_error(report.text)
    elif isinstance(error, UserError | RunFailed | PeerFailed):
        logger.error("%s", error)
        report = ExitReport.from_error(error, error.exit_code, plain=True, echo=isinstance(error, PeerFailed))
        _show_report(report)
    else:
        logger.error("%s", error, exc_info=error)
        report = ExitReport.from_error(error, EXIT_FAILURE, plain=False)
        _show_report(report)
    _write_report(report, world, session)
    return report.code


def _with_line_of_other(error: DifferentMessages, world: World) -> DifferentMessages:
    """Ranks that do not do the same tell each other where they are: this one may not be the odd one."""
    with suppress(Exception):  # the store is gone
        world.store.set(_LINE.format(world.rank), error.line)
        key = _LINE.format(error.other)
        if _wait_until(lambda: world.store.check([key]), OTHER_LINE_WAIT):
            return error.with_line_of_other(world.store.get(key).decode())
    return error


def _disk_full(error: OSError, session: Session | None) -> UserError | RunFailed:
    """What the user is told of a full disk: a refusal as long as there is nothing to resume."""
    run = session.rundir.path if session is not None and session.rundir is not None else None
    if run is None:
        return no_space(error, Path(tempfile.gettempdir()))
    described = describe_full_disk(error, run)
    return DiskFailed(
        f"{described}; earlier checkpoints are untouched, so free some space there, and resume with: "
        f"samestep train --resume {run}"
    )


def _out_of_memory(error: BaseException, world: World, session: Session | None) -> int:
    """Ends the attempt on all ranks; a launcher starts another one with half the micro-batch, if there is one."""
    logger.error("%s", error, exc_info=error)
    retry: dict[str, Any] = {}
    if session is None or session.rundir is None or not session.is_planned:
        problem, advice = f"out of memory before the first step ({type(error).__name__}: {error})", ""
    elif stage := session.own_batch_size():
        problem = f"out of memory ({type(error).__name__}: {error})"
        advice = f"stage {stage!r} has a batch_size of its own: make it smaller in the stage's config, and resume"
    else:
        size, global_batch = session.batch_size, session.config.global_batch_size
        problem, advice = memory_sentence(error, size), memory_advice(size, session.rundir.path)
        text = f"with batch_size {size // 2}; the global batch stays {global_batch}"
        retry = {"retry_batch_size": size // 2, "retry_text": text} if size > 1 else {}
    full_error = OutOfMemory(f"{problem}; {advice}" if advice else problem)
    world.report_failure(full_error)
    report = ExitReport.from_error(OutOfMemory(problem) if retry else full_error, EXIT_MEMORY, plain=True, **retry)
    if not report.write(os.environ):
        print_error(str(full_error))
    _write_report(report, world, session)
    return EXIT_MEMORY


def _show_report(report: ExitReport) -> None:
    """Pass the report to the launcher, which shows it; without a launcher, print it."""
    if report.write(os.environ):
        return
    if report.traceback:
        print_safely(report.traceback, sys.stderr, end="")
    else:
        print_error(report.text)


def _write_report(report: ExitReport, world: World, session: Session | None) -> None:
    """Write the report into the run directory too, if this launch got as far as opening it."""
    if session is not None and session.rundir is not None:
        write_exit_report(session.rundir, report, is_main=world.is_main)
