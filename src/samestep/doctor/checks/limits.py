"""Shared memory and open files: limits that are met in the middle of a run."""

import resource
import shutil

from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import Finding, RankReports, failed, first_of_hosts, named, ok, size, skipped, warning
from samestep.doctor.rendezvous import CheckContext

MEMORY, FILES = "shared memory", "open files"
SHARED = "/dev/shm"
LEAST_SHARED, GOOD_SHARED = 16 << 20, 256 << 20
"""Bytes a rank: NCCL and data workers pass everything through there."""
OWN_FILES, PEER_FILES, GOOD_FILES = 256, 6, 4096
"""Descriptors that a rank needs for itself and for each other rank (three groups, two each), and that leave room."""


def measure(seat: CheckContext) -> Fact:
    """The limits of this rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    fact = {
        "files": soft if soft != infinite else 1 << 30,
        "most_files": hard if hard != infinite else 1 << 30,
        "size": seat.place.size,
        "ranks": seat.place.local_size,
    }
    try:
        return {**fact, "shared": shutil.disk_usage(SHARED).total, "free": shutil.disk_usage(SHARED).free}
    except OSError:
        return fact


def judge(reports: RankReports) -> list[Finding]:
    """Memory, then files."""
    return [_memory(reports), _files(reports)]


def _memory(reports: RankReports) -> Finding:
    told = [report for report in first_of_hosts(reports) if "free" in report.fact]
    if not told:
        return skipped(MEMORY, f"there is no {SHARED} on this system")
    least = min(told, key=lambda report: report.fact["free"] / report.fact["ranks"])
    free, ranks = least.fact["free"], least.fact["ranks"]
    seen = f"{size(free)} of {size(least.fact['shared'])} free in {SHARED} of {least.host}"
    if free >= GOOD_SHARED * ranks:
        return ok(MEMORY, seen)
    say = failed if free < LEAST_SHARED * ranks else warning
    return say(
        MEMORY,
        f"{seen}: a container's default, or left-over files; data workers and NCCL end there with a bus error, so "
        "start the container with --shm-size=8g (or --ipc=host), or remove what is left in it",
    )


def _files(reports: RankReports) -> Finding:
    least = min(reports, key=lambda report: report.fact["files"])
    files, needed = least.fact["files"], OWN_FILES + PEER_FILES * least.fact["size"]
    if files >= max(GOOD_FILES, needed):
        return ok(FILES, f"at least {files} allowed on every rank")
    few = [report for report in reports if report.fact["files"] == files]
    hard = least.fact["most_files"]
    fix = (
        f"ulimit -n {min(hard, 65536)}" if hard > files else "raise nofile in /etc/security/limits.conf or the service"
    )
    say = failed if files < needed else warning
    return say(
        FILES,
        f"{named(few)} may open only {files} files ({needed} are needed at least): data workers and connections to "
        f"other ranks use them up; {fix} before starting",
    )


EXAM = Check("limits", measure, judge, f"{SHARED} does not answer; look at its mount")
