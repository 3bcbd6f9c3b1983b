"""How fast ranks are: all-reduce by message size; copies between devices, to and from host memory and from each rank to
the next; and the same work on every rank, to see which one is slower than the others, and whether its core is busy."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from samestep.core.json_files import Json
from samestep.doctor.check import Check
from samestep.doctor.checks.collectives import NETWORK
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    first_rank_of_each_host,
    format_bytes,
    format_rate,
    format_seconds,
    median_of_others,
    ok,
    skipped,
    warning,
)
from samestep.doctor.rendezvous import CheckContext

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
        message = torch.zeros(count // 4, dtype=torch.float32, device=world.device)
        repeats = _REPEATS if count < _LARGE else _FEW
        times.append([count, _median_seconds(partial(dist.all_reduce, message), world.device, repeats)])
        spent = [max(values) for values in zip(*world.gather([time.perf_counter() - began, times[-1][1]]))]
        if spent[0] + 4 * spent[1] * _FEW > BUDGET:  # agreed: all ranks stop at the same size
            break
    return {"times": times}


def _median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for turn in range(1 + repeats):
        _synchronize(device)
        began = time.perf_counter()
        work()
        _synchronize(device)
        if turn:  # the first one opens connections
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _synchronize(device: torch.device) -> None:
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


PEERS, HOST, NEXT = "peer access", "host to device", "rank to next rank"
SLOW = 2.0
"""How many times slower than the others' a copy must be to be worth a warning."""
_DEVICE_BYTES, _CPU_BYTES = 256 << 20, 8 << 20
_COPIES = 5


def measure_peers(context: CheckContext) -> Measured:
    """Which cards of this host cannot read each other's memory."""
    device = context.connected_world().device
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b] if context.is_first_on_host else []
    return {"cards": count, "apart": [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]}


def compare_peers(reports: RankReports) -> list[Finding]:
    """Without peer access everything goes through host memory: slower, but correct."""
    hosts = first_rank_of_each_host(reports)
    most = max(report.measured["cards"] for report in hosts)
    if most < 2:
        reason = "there are no CUDA devices" if most == 0 else "each rank sees one card"
        return [skipped(PEERS, reason)]
    apart = [report for report in hosts if report.measured["apart"]]
    if apart:
        a, b = apart[0].measured["apart"][0]
        return [
            warning(
                PEERS,
                f"cards {a} and {b} of {apart[0].host} ({len(apart[0].measured['apart'])} pairs in all) do not reach "
                "each other: no NVLink between them, or ACS or IOMMU is on; turn these off where cards share a bus",
            )
        ]
    return [ok(PEERS, f"all pairs of {most} cards on every host")]


def measure_host(context: CheckContext) -> Measured:
    """Bytes a second from pinned host memory to the device, and back."""
    device = context.connected_world().device
    if device.type == "cpu":
        return {}
    here = torch.empty(_DEVICE_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_DEVICE_BYTES, dtype=torch.uint8, device=device)
    return {
        "to": _DEVICE_BYTES / _median_seconds(lambda: there.copy_(here, non_blocking=True), device, _COPIES),
        "back": _DEVICE_BYTES / _median_seconds(lambda: here.copy_(there, non_blocking=True), device, _COPIES),
    }


def compare_host(reports: RankReports) -> list[Finding]:
    """A card much slower than the others sits in a slot with few lanes."""
    if not reports[0].measured:
        return [skipped(HOST, "ranks compute on the CPU")]
    for way in ("to", "back"):
        rates = [report.measured[way] for report in reports]
        for at, report in enumerate(reports):
            usual = median_of_others(rates, at)
            if rates[at] * SLOW < usual:
                return [
                    warning(
                        HOST,
                        f"{describe_ranks([report])} copies at {format_rate(rates[at])}, the others at "
                        f"{format_rate(usual)}: its card sits in a slot with few lanes, or its process on the other "
                        "socket; bind ranks to their card's socket",
                    )
                ]
    least = [min(report.measured[way] for report in reports) for way in ("to", "back")]
    return [ok(HOST, f"at least {format_rate(least[0])} to the device and {format_rate(least[1])} back")]


def measure_next(context: CheckContext) -> Measured:
    """Bytes a second that this rank gets from the one before it, while all send at once."""
    world = context.connected_world()
    if world.size == 1:
        return {}
    count = _CPU_BYTES if world.device.type == "cpu" else _DEVICE_BYTES
    sent = torch.full((count // 4,), float(world.rank), device=world.device)
    got = torch.empty_like(sent)
    before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size

    def exchange() -> None:
        operations = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    seconds = _median_seconds(exchange, world.device, _COPIES)
    return {"bytes_per_s": count / seconds, "right": bool((got == before).all())}


def compare_next(reports: RankReports) -> list[Finding]:
    """What arrives must be what was sent; the speed is only reported."""
    if not reports[0].measured:
        return [skipped(NEXT, "there is only one rank")]
    bad = [report for report in reports if not report.measured["right"]]
    if bad:
        return [
            failed(
                NEXT,
                f"{describe_ranks(bad)} got other values than the rank before it sent: a broken network card, GPU or "
                "driver; leave that host out, and try NCCL_P2P_DISABLE=1",
            )
        ]
    slowest = min(reports, key=lambda report: report.measured["bytes_per_s"])
    return [ok(NEXT, f"at least {format_rate(slowest.measured['bytes_per_s'])}, to {describe_ranks([slowest])}")]


_DRIVER = "its driver does not answer; look at nvidia-smi and dmesg there"
PEER_ACCESS = Check(PEERS, measure_peers, compare_peers, _DRIVER, together=True)
HOST_COPIES = Check(HOST, measure_host, compare_host, _DRIVER, together=True)
NEXT_COPIES = Check(NEXT, measure_next, compare_next, NETWORK, together=True)


STRAGGLERS = "equal speed"
NOTABLE, LARGE = 1.5, 5.0
"""How many times slower than the median of the others gives a warning, and fails: busy cores come and go."""
ROUNDS = 15
LOW_SHARE = 0.8
"""The share of a core below which a rank did not get the time it asked for."""
_WIDTHS = {"cpu": (512, torch.float32), "cuda": (8192, torch.bfloat16), "xpu": (4096, torch.bfloat16)}


def measure_stragglers(context: CheckContext) -> Measured:
    """Multiply matrices in rounds that all ranks start together."""
    world = context.connected_world()
    width, dtype = _WIDTHS[world.device.type]
    generator = torch.Generator().manual_seed(17)
    matrix = torch.randn(width, width, generator=generator).to(world.device, dtype)

    def work() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)
        _synchronize(world.device)

    timed = rounds(work, world.barrier)
    return {
        **timed,
        "flops": 4 * 2 * width**3 / timed["seconds"],
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


def compare_stragglers(reports: RankReports) -> list[Finding]:
    """Names the slowest, if it is slow."""
    times = [report.measured["seconds"] for report in reports]
    slowness = [taken / median_of_others(times, at) for at, taken in enumerate(times)]
    worst = max(range(len(reports)), key=lambda at: slowness[at])
    factor, report = slowness[worst], reports[worst]
    if factor <= NOTABLE:
        others = f"the slowest {factor:.2f} times the median of the others" if len(reports) > 1 else "by the only rank"
        return [ok(STRAGGLERS, f"a round of {format_seconds(statistics.median(times))}, {others}")]
    finding = failed if factor > LARGE else warning
    seen = f"{describe_ranks([report])} is {factor:.1f} times slower than the median of the others"
    return [finding(STRAGGLERS, f"{seen}: {_why(report.measured)}")]


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
STRAGGLERS_CHECK = Check(STRAGGLERS, measure_stragglers, compare_stragglers, _HANGS, together=True)
