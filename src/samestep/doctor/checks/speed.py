"""Latency and bandwidth of all-reduce by message size."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from samestep.core.records import Json
from samestep.doctor.check import Check
from samestep.doctor.checks.collectives import NETWORK
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    format_bytes,
    format_rate,
    format_seconds,
    ok,
    skipped,
)
from samestep.doctor.rendezvous import CheckContext
from samestep.world.world import World

NAME = "all-reduce speed"
SIZES = tuple(4**power for power in range(1, 14))
"""Bytes: 4 B to 64 MiB."""
BUDGET = 10.0
"""Seconds for all sizes together: a slow network skips the largest sizes."""
_REPEATS, _FEW, _LARGE = 20, 6, 1 << 20


@dataclass(frozen=True)
class Point:
    """One message size: `bus` is the rate at which each rank sends, the same at any number of ranks."""

    bytes: int
    seconds: float
    bus: float


def measure(context: CheckContext) -> Measured:
    """The median time of each size, by this rank's clock."""
    world = context.connected_world()
    if world.size == 1:
        return {"times": []}
    times: list[Json] = []
    began = time.perf_counter()
    for count in SIZES:
        times.append([count, time_size(world, count)])
        spent = [max(values) for values in zip(*world.gather([time.perf_counter() - began, times[-1][1]]))]
        if spent[0] + 4 * spent[1] * _FEW > BUDGET:  # agreed: all ranks stop at the same size
            break
    return {"times": times}


def time_size(world: World, count: int) -> float:
    """The median time of one all-reduce of so many bytes."""
    message = torch.zeros(count // 4, dtype=torch.float32, device=world.device)
    times = []
    for turn in range(1 + (_REPEATS if count < _LARGE else _FEW)):
        synchronize(world.device)
        began = time.perf_counter()
        dist.all_reduce(message)
        synchronize(world.device)
        if turn:  # the first one opens connections
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def points(reports: RankReports) -> list[Point]:
    """For each size that all ranks measured: the time of the slowest rank, and the bytes per second."""
    found = []
    ranks = len(reports)
    for same in zip(*(report.measured["times"] for report in reports)):
        count, seconds = same[0][0], max(taken for _, taken in same)
        found.append(Point(count, seconds, count / seconds * 2 * (ranks - 1) / ranks))
    return found


def compare(reports: RankReports) -> list[Finding]:
    """Only reported: what is too slow depends on what is trained."""
    found = points(reports)
    if not found:
        return [skipped(NAME, "there is only one rank")]
    return [ok(NAME, summarize(found))]


def summarize(found: Sequence[Point]) -> str:
    """`35 µs for the smallest message, up to 1.2 GB/s a rank (64 MiB)`."""
    best = max(found, key=lambda point: point.bus)
    smallest = f"{format_seconds(found[0].seconds)} for {format_bytes(found[0].bytes)}"
    return f"{smallest}, up to {format_rate(best.bus)} a rank ({format_bytes(best.bytes)})"


CHECK = Check(NAME, measure, compare, NETWORK, together=True)
