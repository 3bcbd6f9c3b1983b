"""Copies between devices: peer access on a host, to and from host memory, and from each rank to the next."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from samestep.doctor.check import Check
from samestep.doctor.checks.collectives import NETWORK
from samestep.doctor.checks.speed import synchronize
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    first_rank_of_each_host,
    format_rate,
    median_of_others,
    ok,
    skipped,
    warning,
)
from samestep.doctor.rendezvous import CheckContext

PEERS, HOST, NEXT = "peer access", "host to device", "rank to next rank"
SLOW = 2.0
"""How many times slower than the others' a copy must be to be worth a warning."""
_DEVICE_BYTES, _CPU_BYTES = 256 << 20, 8 << 20
_REPEATS = 5


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
        "to": _DEVICE_BYTES / _median(lambda: there.copy_(here, non_blocking=True), device),
        "back": _DEVICE_BYTES / _median(lambda: here.copy_(there, non_blocking=True), device),
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

    seconds = _median(exchange, world.device)
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


def _median(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for turn in range(_REPEATS + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        if turn:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


_DRIVER = "its driver does not answer; look at nvidia-smi and dmesg there"
PEER_ACCESS = Check(PEERS, measure_peers, compare_peers, _DRIVER, together=True)
HOST_COPIES = Check(HOST, measure_host, compare_host, _DRIVER, together=True)
NEXT_COPIES = Check(NEXT, measure_next, compare_next, NETWORK, together=True)
