"""The entry: ranks meet and run the checks, rank 0 prints one table, saves the constants and returns the exit code."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch.distributed as dist

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, RunFailed, UserError
from samestep.core.output import print_safely
from samestep.doctor.check import Check, CheckRunner, follow
from samestep.doctor.checks import collectives, devices, disk, network, speed, versions
from samestep.doctor.findings import failed
from samestep.doctor.rendezvous import (
    SLACK,
    CheckContext,
    StoreChannel,
    announce_arrival,
    clock_key,
    collect_arrivals,
    exit_after,
    leave_store,
    open_channel,
    run_within,
)
from samestep.doctor.report import DoctorReport
from samestep.world.rank_discovery import discover

BASIC = (versions.CHECK, devices.CHECK, network.HOST_NAMES_CHECK, network.PORTS_CHECK, devices.LIMITS_CHECK, disk.CHECK)
DDP = (*BASIC, collectives.GROUP_CHECK, collectives.VALUES_CHECK, collectives.GRADIENTS_CHECK)
ALL = (
    *DDP,
    speed.CHECK,
    speed.PEER_ACCESS,
    speed.HOST_COPIES,
    speed.NEXT_COPIES,
    disk.SPEED_CHECK,
    disk.ROUND_TRIP_CHECK,
    speed.STRAGGLERS_CHECK,
)
TESTS = {"basic": BASIC, "ddp": DDP, "all": ALL}
"""What `--test` may name."""


class EndedBySignal(BaseException):
    """A signal asked this process to end."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    test: str = "basic"
    out: Path = Path("runs")
    device: str = "auto"
    timeout: float = 60.0
    json_file: Path | None = None
    """The file for what was measured; by default one in the user's cache."""


def run_doctor(request: Request) -> int:
    """Run the checks on this rank. Rank 0's exit code says whether anything failed; that of the others is 0.

    A launcher ends all ranks as soon as one fails, and rank 0 needs the time to print what it knows.
    """
    rank_info = discover(os.environ)
    try:
        channel = open_channel(rank_info, os.environ, request.timeout)
        exit_after(4 * (request.timeout + SLACK))
        context = CheckContext(rank_info, channel.new_connection(), request.out, request.device, request.timeout)
        context.clock_key = clock_key(rank_info, os.environ)
        if context.rank > 0:
            _follow(context, channel, TESTS[request.test])
            return _finish(context, channel, EXIT_DONE)
    except (RunFailed, UserError) as error:  # rank 0 may not know of it, so each rank prints its own error
        print_safely(f"samestep: {error}", sys.stderr)
        if rank_info.rank > 0:
            # Rank 0 gives up at about the same time, and its launcher would end it before it can print.
            time.sleep(SLACK)
        os._exit(error.exit_code)  # a thread may still hang
    runner = CheckRunner(context, channel)
    report = DoctorReport(runner, request.test, request.json_file)
    with report.progress():
        _lead(runner, TESTS[request.test])
    report.print_and_save()
    return _finish(context, channel, EXIT_FAILURE if report.is_bad else EXIT_DONE)


def _follow(context: CheckContext, channel: StoreChannel, checks: Sequence[Check]) -> None:
    try:
        announce_arrival(context, channel)
        follow(context, channel, {check.name: check for check in checks})
    except dist.DistError:
        raise RunFailed(f"rank {context.rank} on {context.host} lost rank 0: it died, or the network was cut") from None


def _lead(runner: CheckRunner, checks: Sequence[Check]) -> None:
    """Run all checks; when a signal ends them, what was found until then is still printed."""
    try:
        with _ended_by_signals():
            collect_arrivals(runner.context, runner.channel)
            runner.report_ranks()
            runner.run(checks)
    except EndedBySignal as ended:
        runner.stopped = True
        runner.findings.append(
            failed(
                runner.current,
                f"{ended} ended the checks here: another rank died and its launcher ended all, a time limit was "
                "reached, or a user stopped it; look at what the launcher printed",
            )
        )
    with suppress(dist.DistError):  # the store may have ended with the launcher
        runner.announce_end()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise EndedBySignal(signal.Signals(number).name)


def _finish(context: CheckContext, channel: StoreChannel, code: int) -> int:
    """Return the exit code, or end the process at once where something hangs."""
    context.stuck = context.stuck or not _has_left_group(context)
    with suppress(dist.DistError):
        leave_store(context, channel)
    exit_after(0)
    if context.stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _has_left_group(context: CheckContext) -> bool:
    try:
        if context.world is not None:
            run_within(SLACK, context.world.leave)
    except Exception:  # a broken group cannot be closed
        return False
    return True
