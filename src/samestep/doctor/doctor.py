"""The whole examination: meet, go from exam to exam, print one table, keep the constants, end with the right code."""

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
from samestep.doctor.check import Check
from samestep.doctor.checks import (
    collectives,
    copies,
    devices,
    disk,
    gradients,
    group,
    hosts,
    limits,
    ports,
    roundtrip,
    speed,
    stragglers,
    versions,
)
from samestep.doctor.findings import failed
from samestep.doctor.rendezvous import SLACK, CheckContext, StoreChannel, answer_roll, call_roll, find_line, part
from samestep.doctor.report import DoctorReport
from samestep.doctor.runner import CheckRunner, follow
from samestep.doctor.time_limit import last_resort, within
from samestep.world.rank_discovery import discover

BASIC = (versions.EXAM, devices.EXAM, hosts.EXAM, ports.EXAM, limits.EXAM, disk.EXAM)
DDP = (*BASIC, group.EXAM, collectives.EXAM, gradients.EXAM)
ALL = (
    *DDP,
    speed.EXAM,
    copies.PEER_ACCESS,
    copies.HOST_COPIES,
    copies.NEXT_COPIES,
    disk.SPEED,
    roundtrip.EXAM,
    stragglers.EXAM,
)
TESTS = {"basic": BASIC, "ddp": DDP, "all": ALL}
"""What `--test` may name."""


class EndedBySignal(BaseException):
    """A signal asked this process to end."""


@dataclass(frozen=True)
class Request:
    """What a user asked for."""

    test: str = "basic"
    out: Path = Path("runs")
    device: str = "auto"
    timeout: float = 60.0
    keep: Path | None = None
    """The file for what was measured; by default one in the user's cache."""


def examine(request: Request) -> int:
    """This rank's part of an examination. Rank 0's exit code tells whether anything failed; the others' are 0.

    A launcher ends all ranks as soon as one ends badly, and rank 0 must have the time to say what it knows.
    """
    place = discover(os.environ)
    try:
        line = find_line(place, os.environ, request.timeout)
        last_resort(4 * (request.timeout + SLACK))
        seat = CheckContext(place, line.another(), request.out, request.device, request.timeout)
        if seat.rank > 0:
            _take_part(seat, line, TESTS[request.test])
            return _leave(seat, line, EXIT_DONE)
    except (RunFailed, UserError) as error:  # rank 0 does not know, or is the one: whoever it is says so itself
        print_safely(f"samestep: {error}", sys.stderr)
        if place.rank > 0:
            time.sleep(
                SLACK
            )  # rank 0 gives up at about the same time, and its launcher would end it before it can speak
        os._exit(error.exit_code)  # what was waited for may still hang
    course = CheckRunner(seat, line)
    outcome = DoctorReport(course, request.test, request.keep)
    with outcome.showing():
        _lead(course, TESTS[request.test])
    outcome.tell()
    return _leave(seat, line, EXIT_FAILURE if outcome.is_bad else EXIT_DONE)


def _take_part(seat: CheckContext, line: StoreChannel, exams: Sequence[Check]) -> None:
    try:
        answer_roll(seat, line)
        follow(seat, line, {exam.name: exam for exam in exams})
    except dist.DistError:
        raise RunFailed(f"rank {seat.rank} on {seat.host} lost rank 0: it died, or the network was cut") from None


def _lead(course: CheckRunner, exams: Sequence[Check]) -> None:
    """Hold all exams; when a signal comes, what was found until then is worth telling."""
    try:
        with _ended_by_signals():
            call_roll(course.seat, course.line)
            course.begin()
            course.lead(exams)
    except EndedBySignal as ended:
        course.stopped = True
        course.findings.append(
            failed(
                course.doing,
                f"{ended} ended the examination here: another rank died and its launcher ended all, a time limit came, "
                "or somebody stopped it; look at what the launcher says",
            )
        )
    with suppress(dist.DistError):  # the store may have gone with the launcher
        course.end()


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


def _leave(seat: CheckContext, line: StoreChannel, code: int) -> int:
    """Part in good order, or, where something hangs, by force."""
    seat.stuck = seat.stuck or not _has_parted(seat)
    with suppress(dist.DistError):
        part(seat, line)
    last_resort(0)
    if seat.stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _has_parted(seat: CheckContext) -> bool:
    try:
        if seat.world is not None:
            within(SLACK, seat.world.leave)
    except Exception:  # a broken group cannot be left in any other way
        return False
    return True
