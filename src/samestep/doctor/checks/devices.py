"""The device that each rank would compute on, its memory, and the cores and memory of its host."""

import os
from pathlib import Path

import torch

from samestep.core.errors import UserError
from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import (
    Finding,
    RankReports,
    failed,
    first_of_hosts,
    listed,
    named,
    odd_ones,
    ok,
    size,
    warning,
)
from samestep.doctor.rendezvous import CheckContext
from samestep.verify.tolerance import plural
from samestep.world.device import choose_device
from samestep.world.watchdog.stack_dump import host_memory

TAKEN = 0.1
"""The part of a card's memory that others may hold before it is worth a word."""
ROOM = 1 << 30
"""Bytes of host memory that a rank needs to begin with."""
_DRIVER = Path("/proc/driver/nvidia")


def measure(seat: CheckContext) -> Fact:
    """The device of this rank and the state of its host."""
    total, available = host_memory()
    return {
        **_device(seat),
        "cores": sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1)),
        "threads": torch.get_num_threads(),
        "ranks": seat.place.local_size,
        "memory": total,
        "available": available,
        "blind": _DRIVER.exists() and not torch.cuda.is_available() and not seat.device.startswith("cpu"),
        "built_for": torch.version.cuda or "",
    }


def _device(seat: CheckContext) -> Fact:
    try:
        device = choose_device(seat.device, seat.place)
    except UserError as error:
        return {"refused": str(error)}
    if device.type == "cpu":
        return {"kind": "cpu", "name": "CPU"}
    module = getattr(torch, device.type)
    free, total = module.mem_get_info(device)
    return {"kind": device.type, "name": module.get_device_name(device), "free": free, "total": total}


def judge(reports: RankReports) -> list[Finding]:
    """The devices, then the hosts."""
    return [_devices(reports), _cores(reports), _memory(reports)]


def _devices(reports: RankReports) -> Finding:
    name = "devices"
    refused = [report for report in reports if "refused" in report.fact]
    if refused:
        return failed(name, f"{named(refused)}: {refused[0].fact['refused']}")
    blind = [report for report in reports if report.fact["blind"]]
    if blind:
        built = blind[0].fact["built_for"]
        why = f"the driver is too old for its CUDA {built}" if built else "it is a build without CUDA"
        return failed(
            name,
            f"{named(blind)} has NVIDIA's driver, but torch sees no GPU: {why}, or CUDA_VISIBLE_DEVICES hides them "
            "all; install a build of torch that fits the driver",
        )
    usual, odd = odd_ones(reports, {report.rank: report.fact["name"] for report in reports})
    if any(report.fact["kind"] != reports[0].fact["kind"] for report in reports):
        found = odd[0].fact["name"]
        return failed(
            name, f"{named(odd)} computes on {found}, the others on {usual}: ask for the same kind on every host"
        )
    taken = [r for r in reports if r.fact["kind"] != "cpu" and r.fact["free"] < (1 - TAKEN) * r.fact["total"]]
    if taken:
        free, total = taken[0].fact["free"], taken[0].fact["total"]
        return warning(
            name,
            f"{named(taken)} has only {size(free)} of {size(total)} free: another process is on the card; look at "
            "nvidia-smi and end what was left behind",
        )
    if odd:
        return warning(name, f"{named(odd)} has {odd[0].fact['name']}, the others {usual}: the slowest sets the pace")
    memory = f" with {size(reports[0].fact['total'])}, all of it free" if reports[0].fact["kind"] != "cpu" else ""
    return ok(name, f"every rank on {usual}{memory}")


def _cores(reports: RankReports) -> Finding:
    """Threads that outnumber cores wait for each other. Some launchers give each rank cores of its own."""
    name = "cores"
    seen = []
    for host in dict.fromkeys(report.host for report in reports):
        ranks = [report for report in reports if report.host == host]
        cores = {core for report in ranks for core in report.fact["cores"]}
        threads = sum(report.fact["threads"] for report in ranks)
        if threads > len(cores):
            return _crowded(name, host, len(ranks), threads, len(cores))
        bound = [report for report in ranks if report.fact["threads"] > len(report.fact["cores"])]
        if bound:
            own = len(bound[0].fact["cores"])
            return warning(
                name,
                f"{named(bound)} may use only {plural(own, 'core')} for {bound[0].fact['threads']} threads: the "
                f"launcher binds ranks to cores; set OMP_NUM_THREADS={own}, or have it bind less tightly",
            )
        seen.append(f"{host} has {plural(len(cores), 'core')} for {plural(threads, 'thread')} of its ranks")
    more = f" and {len(seen) - 3} more hosts alike" if len(seen) > 3 else ""
    return ok(name, listed(seen[:3]) + more)


def _crowded(name: str, host: str, ranks: int, threads: int, cores: int) -> Finding:
    shared = f"{plural(ranks, 'rank')} on {host} with {plural(threads, 'thread')} in all share {plural(cores, 'core')}"
    fix = f"set OMP_NUM_THREADS={cores // ranks}" if cores >= ranks else "start fewer ranks, or ask for more cores"
    return warning(name, f"{shared} and slow each other down: {fix}")


def _memory(reports: RankReports) -> Finding:
    name = "host memory"
    hosts = first_of_hosts(reports)
    short = [r for r in hosts if r.fact["memory"] and r.fact["available"] < ROOM * r.fact["ranks"]]
    if short:
        left, ranks = size(short[0].fact["available"]), plural(short[0].fact["ranks"], "rank")
        return warning(
            name,
            f"{short[0].host} has {left} left for {ranks}: they may be killed when it runs out; end other programs, or "
            "ask the scheduler for more memory",
        )
    told = [f"{size(r.fact['available'])} of {size(r.fact['memory'])} on {r.host}" for r in hosts[:4]]
    return ok(name, f"available: {listed(told)}")


EXAM = Check("devices", measure, judge, "its GPU or driver does not answer; look at nvidia-smi and dmesg there")
