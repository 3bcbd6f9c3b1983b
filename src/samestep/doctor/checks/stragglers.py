"""The same work on every rank, several times: which rank is slower than the others, and whether its core is busy."""

import statistics
import time
from collections.abc import Callable

import torch

from samestep.doctor.check import Check
from samestep.doctor.checks.speed import synchronize
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    format_seconds,
    median_of_others,
    ok,
    warning,
)
from samestep.doctor.rendezvous import CheckContext

NAME = "equal speed"
NOTABLE, LARGE = 1.5, 5.0
"""How many times slower than the median of the others gives a warning, and fails: busy cores come and go."""
ROUNDS = 15
LOW_SHARE = 0.8
"""The share of a core below which a rank did not get the time it asked for."""
_WIDTHS = {"cpu": (512, torch.float32), "cuda": (8192, torch.bfloat16), "xpu": (4096, torch.bfloat16)}


def measure(context: CheckContext) -> Measured:
    """Multiply matrices in rounds that all ranks start together."""
    world = context.connected_world()
    width, dtype = _WIDTHS[world.device.type]
    generator = torch.Generator().manual_seed(17)
    matrix = torch.randn(width, width, generator=generator).to(world.device, dtype)

    def work() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)
        synchronize(world.device)

    timed = rounds(work, world.barrier)
    flops = 4 * 2 * width**3 / timed["seconds"]
    return {
        **timed,
        "flops": flops,
        "width": width,
        "dtype": str(dtype).removeprefix("torch."),
        "kind": world.device.type,
    }


def rounds(work: Callable[[], None], barrier: Callable[[], None]) -> dict[str, float]:
    """The median time of a round, and the share of a core that this process got in its rounds."""
    times, used = [], []
    work()
    for _ in range(ROUNDS):
        barrier()
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - began)
        used.append(time.process_time() - began_cpu)
    return {"seconds": statistics.median(times), "share": sum(used) / sum(times)}


def compare(reports: RankReports) -> list[Finding]:
    """Names the slowest, if it is slow."""
    times = [report.measured["seconds"] for report in reports]
    slowness = [taken / median_of_others(times, at) for at, taken in enumerate(times)]
    worst = max(range(len(reports)), key=lambda at: slowness[at])
    factor, report = slowness[worst], reports[worst]
    if factor <= NOTABLE:
        usual = format_seconds(statistics.median(times))
        seen = f"a round of {usual}, the slowest {factor:.2f} times the median of the others"
        return [ok(NAME, seen if len(reports) > 1 else f"a round of {format_seconds(times[0])}, by the only rank")]
    finding = failed if factor > LARGE else warning
    seen = f"{describe_ranks([report])} is {factor:.1f} times slower than the median of the others"
    return [finding(NAME, f"{seen}: {_why(report.measured)}")]


def _why(measured: Measured) -> str:
    if measured["kind"] != "cpu":
        return "a hot, throttled or shared GPU; look at nvidia-smi -q -d PERFORMANCE there, or leave that host out"
    if measured["share"] < LOW_SHARE:
        return (
            f"it got {100 * measured['share']:.0f}% of a core, because other programs or ranks run there; end them, or "
            "give each rank cores of its own"
        )
    return "a slower or throttled core; look at the host's clock rate and temperature, or leave that host out"


_HANGS = "a core or GPU that is stuck, or far slower than the others; look at its load, or leave that host out"
CHECK = Check(NAME, measure, compare, _HANGS, together=True)
