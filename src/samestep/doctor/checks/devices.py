"""The device that each rank would compute on and its memory; of its host the cores and memory, and shared memory and
open files: limits that a run may reach after hours."""

import os
import resource
import shutil

import torch

from samestep.core.errors import UserError
from samestep.core.output import plural
from samestep.doctor.check import Check
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    first_rank_of_each_host,
    format_bytes,
    join_list,
    ok,
    outliers,
    skipped,
    warning,
)
from samestep.doctor.rendezvous import CheckContext
from samestep.world.device import NVIDIA_DRIVER, choose_device
from samestep.world.watchdog.stack_dump import host_memory

TAKEN = 0.1
"""The part of a GPU's memory that other processes may hold before it is worth a warning."""
ROOM = 1 << 30
"""Bytes of host memory that a rank needs at the start."""


def measure(context: CheckContext) -> Measured:
    """The device of this rank and the state of its host."""
    total, available = host_memory()
    return {
        **_device(context),
        "cores": sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1)),
        "threads": torch.get_num_threads(),
        "ranks": context.rank_info.local_size,
        "memory": total,
        "available": available,
        "blind": NVIDIA_DRIVER.exists() and not torch.cuda.is_available() and not context.device.startswith("cpu"),
        "built_for": torch.version.cuda or "",
    }


def _device(context: CheckContext) -> Measured:
    try:
        device = choose_device(context.device, context.rank_info)
    except UserError as error:
        return {"refused": str(error)}
    if device.type == "cpu":
        return {"kind": "cpu", "name": "CPU"}
    module = getattr(torch, device.type)
    free, total = module.mem_get_info(device)
    return {"kind": device.type, "name": module.get_device_name(device), "free": free, "total": total}


def compare(reports: RankReports) -> list[Finding]:
    """The devices, then the hosts."""
    return [_devices(reports), _cores(reports), _memory(reports)]


def _devices(reports: RankReports) -> Finding:
    name = "devices"
    refused = [report for report in reports if "refused" in report.measured]
    if refused:
        return failed(name, f"{describe_ranks(refused)}: {refused[0].measured['refused']}")
    blind = [report for report in reports if report.measured["blind"]]
    if blind:
        built = blind[0].measured["built_for"]
        why = f"the driver is too old for its CUDA {built}" if built else "it is a build without CUDA"
        return failed(
            name,
            f"{describe_ranks(blind)} has NVIDIA's driver, but torch sees no GPU: {why}, or CUDA_VISIBLE_DEVICES "
            "hides them all; install a build of torch that fits the driver",
        )
    usual, odd = outliers(reports, {report.rank: report.measured["name"] for report in reports})
    if any(report.measured["kind"] != reports[0].measured["kind"] for report in reports):
        found = odd[0].measured["name"]
        return failed(
            name,
            f"{describe_ranks(odd)} computes on {found}, the others on {usual}: ask for the same kind on every host",
        )
    taken = [
        r for r in reports if r.measured["kind"] != "cpu" and r.measured["free"] < (1 - TAKEN) * r.measured["total"]
    ]
    if taken:
        free, total = taken[0].measured["free"], taken[0].measured["total"]
        return warning(
            name,
            f"{describe_ranks(taken)} has only {format_bytes(free)} of {format_bytes(total)} free: another process is "
            "on the card; look at nvidia-smi and end what was left behind",
        )
    if odd:
        return warning(
            name, f"{describe_ranks(odd)} has {odd[0].measured['name']}, the others {usual}: the slowest sets the pace"
        )
    memory = (
        f" with {format_bytes(reports[0].measured['total'])}, all of it free"
        if reports[0].measured["kind"] != "cpu"
        else ""
    )
    return ok(name, f"every rank on {usual}{memory}")


def _cores(reports: RankReports) -> Finding:
    """Threads that outnumber cores wait for each other. Some launchers give each rank cores of its own."""
    name = "cores"
    seen = []
    for host in dict.fromkeys(report.host for report in reports):
        ranks = [report for report in reports if report.host == host]
        cores = {core for report in ranks for core in report.measured["cores"]}
        threads = sum(report.measured["threads"] for report in ranks)
        if threads > len(cores):
            return _crowded(name, host, len(ranks), threads, len(cores))
        bound = [report for report in ranks if report.measured["threads"] > len(report.measured["cores"])]
        if bound:
            own = len(bound[0].measured["cores"])
            return warning(
                name,
                f"{describe_ranks(bound)} may use only {plural(own, 'core')} for {bound[0].measured['threads']} "
                f"threads: the launcher binds ranks to cores; set OMP_NUM_THREADS={own}, or have it bind less tightly",
            )
        seen.append(f"{host} has {plural(len(cores), 'core')} for {plural(threads, 'thread')} of its ranks")
    more = f" and {len(seen) - 3} more hosts alike" if len(seen) > 3 else ""
    return ok(name, join_list(seen[:3]) + more)


def _crowded(name: str, host: str, ranks: int, threads: int, cores: int) -> Finding:
    shared = f"{plural(ranks, 'rank')} on {host} with {plural(threads, 'thread')} in all share {plural(cores, 'core')}"
    fix = f"set OMP_NUM_THREADS={cores // ranks}" if cores >= ranks else "start fewer ranks, or ask for more cores"
    return warning(name, f"{shared} and slow each other down: {fix}")


def _memory(reports: RankReports) -> Finding:
    name = "host memory"
    hosts = first_rank_of_each_host(reports)
    short = [r for r in hosts if r.measured["memory"] and r.measured["available"] < ROOM * r.measured["ranks"]]
    if short:
        left, ranks = format_bytes(short[0].measured["available"]), plural(short[0].measured["ranks"], "rank")
        return warning(
            name,
            f"{short[0].host} has {left} left for {ranks}: they may be killed when it runs out; end other programs, or "
            "ask the scheduler for more memory",
        )
    texts = [
        f"{format_bytes(r.measured['available'])} of {format_bytes(r.measured['memory'])} on {r.host}"
        for r in hosts[:4]
    ]
    return ok(name, f"available: {join_list(texts)}")


CHECK = Check("devices", measure, compare, "its GPU or driver does not answer; look at nvidia-smi and dmesg there")


SHARED_MEMORY, FILES = "shared memory", "open files"
SHARED = "/dev/shm"
LEAST_SHARED, GOOD_SHARED = 16 << 20, 256 << 20
"""Bytes for each rank: NCCL and data workers pass everything through shared memory."""
OWN_FILES, PEER_FILES, GOOD_FILES = 256, 6, 4096
"""Descriptors that a rank needs for itself and for each other rank (three groups, two each), and that leave room."""


def measure_limits(context: CheckContext) -> Measured:
    """The limits of this rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    measured = {
        "files": soft if soft != infinite else 1 << 30,
        "most_files": hard if hard != infinite else 1 << 30,
        "size": context.rank_info.size,
        "ranks": context.rank_info.local_size,
    }
    try:
        return {**measured, "shared": shutil.disk_usage(SHARED).total, "free": shutil.disk_usage(SHARED).free}
    except OSError:
        return measured


def compare_limits(reports: RankReports) -> list[Finding]:
    """Memory, then files."""
    return [_shared_memory(reports), _files(reports)]


def _shared_memory(reports: RankReports) -> Finding:
    readable = [report for report in first_rank_of_each_host(reports) if "free" in report.measured]
    if not readable:
        return skipped(SHARED_MEMORY, f"there is no {SHARED} on this system")
    least = min(readable, key=lambda report: report.measured["free"] / report.measured["ranks"])
    free, ranks = least.measured["free"], least.measured["ranks"]
    seen = f"{format_bytes(free)} of {format_bytes(least.measured['shared'])} free in {SHARED} of {least.host}"
    if free >= GOOD_SHARED * ranks:
        return ok(SHARED_MEMORY, seen)
    finding = failed if free < LEAST_SHARED * ranks else warning
    return finding(
        SHARED_MEMORY,
        f"{seen}: a container's default, or left-over files; data workers and NCCL end there with a bus error, so "
        "start the container with --shm-size=8g (or --ipc=host), or remove what is left in it",
    )


def _files(reports: RankReports) -> Finding:
    least = min(reports, key=lambda report: report.measured["files"])
    files, needed = least.measured["files"], OWN_FILES + PEER_FILES * least.measured["size"]
    if files >= max(GOOD_FILES, needed):
        return ok(FILES, f"at least {files} allowed on every rank")
    few = [report for report in reports if report.measured["files"] == files]
    hard = least.measured["most_files"]
    fix = (
        f"ulimit -n {min(hard, 65536)}" if hard > files else "raise nofile in /etc/security/limits.conf or the service"
    )
    finding = failed if files < needed else warning
    return finding(
        FILES,
        f"{describe_ranks(few)} may open only {files} files ({needed} are needed at least): data workers and "
        f"connections to other ranks use them up; {fix} before starting",
    )


LIMITS_CHECK = Check("limits", measure_limits, compare_limits, f"{SHARED} does not answer; look at its mount")
