"""Shared memory and open files: limits that a run may reach after hours."""

import resource
import shutil

from samestep.doctor.check import Check
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    first_rank_of_each_host,
    format_bytes,
    ok,
    skipped,
    warning,
)
from samestep.doctor.rendezvous import CheckContext

MEMORY, FILES = "shared memory", "open files"
SHARED = "/dev/shm"
LEAST_SHARED, GOOD_SHARED = 16 << 20, 256 << 20
"""Bytes for each rank: NCCL and data workers pass everything through shared memory."""
OWN_FILES, PEER_FILES, GOOD_FILES = 256, 6, 4096
"""Descriptors that a rank needs for itself and for each other rank (three groups, two each), and that leave room."""


def measure(context: CheckContext) -> Measured:
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


def compare(reports: RankReports) -> list[Finding]:
    """Memory, then files."""
    return [_memory(reports), _files(reports)]


def _memory(reports: RankReports) -> Finding:
    readable = [report for report in first_rank_of_each_host(reports) if "free" in report.measured]
    if not readable:
        return skipped(MEMORY, f"there is no {SHARED} on this system")
    least = min(readable, key=lambda report: report.measured["free"] / report.measured["ranks"])
    free, ranks = least.measured["free"], least.measured["ranks"]
    seen = f"{format_bytes(free)} of {format_bytes(least.measured['shared'])} free in {SHARED} of {least.host}"
    if free >= GOOD_SHARED * ranks:
        return ok(MEMORY, seen)
    finding = failed if free < LEAST_SHARED * ranks else warning
    return finding(
        MEMORY,
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


CHECK = Check("limits", measure, compare, f"{SHARED} does not answer; look at its mount")
