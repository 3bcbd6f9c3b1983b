"""The folder where runs go: room, a rename that is atomic and stays, locks, and whether all ranks see the same one."""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samestep.core.records import sync_folder, write_atomically
from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import Finding, RankReport, RankReports, failed, named, ok, rate, size, span, warning
from samestep.doctor.rendezvous import CheckContext, wait_until

SPACE, RENAME, SHARED = "disk space", "disk: rename and locks", "disk: shared"
LEAST, GOOD = 1 << 30, 20 << 30
"""Bytes that must be free, and that leave room for some checkpoints."""
_APPEARS = 2.0
"""Seconds that a file may take to show on another host: network disks take their time."""
_WRITTEN = 64 << 20
_PREFIX = ".samestep-doctor-"


def measure(seat: CheckContext) -> Fact:
    """Try the folder from here. Nothing is left in it."""
    folder = existing(seat.out)
    fact: dict[str, object] = {"folder": str(folder), "out": str(seat.out), "seen": _sees(seat, folder)}
    try:
        usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
        fact.update(free=usage.free, total=usage.total)
        fact["full_of_files"] = inodes.f_files > 0 and inodes.f_favail == 0
        return {**fact, "wrong": "", "seconds": probe(folder)}
    except (OSError, AssertionError) as error:
        return {**fact, "wrong": getattr(error, "strerror", None) or str(error)}


def existing(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))


def probe(folder: Path) -> float:
    """Write, rename over a file, and lock, as runs do; the seconds that a small file takes to be safe."""
    inside = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        target = inside / "file"
        write_atomically(target, "old")
        began = time.perf_counter()
        write_atomically(target, "new" * 1000)
        seconds = time.perf_counter() - began
        assert target.read_text() == "new" * 1000, "a renamed file does not have its new content"
        assert [path.name for path in inside.iterdir()] == ["file"], "a rename leaves the old name behind"
        with open(inside / "lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return seconds
    finally:
        shutil.rmtree(inside, ignore_errors=True)


def _sees(seat: CheckContext, folder: Path) -> bool:
    """Whether a file that rank 0 puts into its folder is there for this rank as well."""
    if seat.rank > 0:
        told = seat.line.hear("token", seat.timeout / 2)
        seen = not told or _in_time(Path(told).exists, _APPEARS)  # an empty word: rank 0 could not write
        seat.line.count("looked", 1)
        return seen
    token = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        token.touch()
        sync_folder(folder)
    except OSError:  # the probe will tell
        seat.line.tell("token", "")
        return True
    seat.line.tell("token", str(token))
    _in_time(lambda: seat.line.count("looked") >= len(seat.present) - 1, seat.timeout / 2)
    with suppress(OSError):
        token.unlink()
    return True


def _in_time(ready: Callable[[], bool], patience: float) -> bool:
    try:
        wait_until(ready, patience)
    except TimeoutError:
        return False
    return True


def judge(reports: RankReports) -> list[Finding]:
    """Room, rename, sharing."""
    return [_space(reports), _rename(reports), _shared(reports)]


def _space(reports: RankReports) -> Finding:
    told = [report for report in reports if "free" in report.fact]
    if not told:
        return failed(SPACE, f"{named(reports)} cannot look at {reports[0].fact['folder']}: choose another --out")
    full = [report for report in told if report.fact["full_of_files"]]
    if full:
        return failed(
            SPACE,
            f"{named(full)} has no file left to give in {full[0].fact['folder']}, though there may be bytes: remove "
            "old files, or choose another --out",
        )
    least = min(told, key=lambda report: report.fact["free"])
    seen = f"{size(least.fact['free'])} of {size(least.fact['total'])} free in {least.fact['folder']}"
    if least.fact["free"] >= GOOD:
        return ok(SPACE, seen)
    say = failed if least.fact["free"] < LEAST else warning
    return say(
        SPACE, f"{named([least])} has {seen}: checkpoints will soon fill it; remove old runs, or choose another --out"
    )


def _rename(reports: RankReports) -> Finding:
    wrong = [report for report in reports if report.fact["wrong"]]
    if wrong:
        fact = wrong[0].fact
        return failed(
            RENAME,
            f"{named(wrong)} cannot write, rename and lock in {fact['folder']} ({fact['wrong']}): it is full, "
            "read-only, somebody else's, or a disk without locks; choose another --out",
        )
    slowest = max(reports, key=lambda report: report.fact["seconds"])
    return ok(RENAME, f"atomic; a small file is safe after {span(slowest.fact['seconds'])}")


def _shared(reports: RankReports) -> Finding:
    folder = reports[0].fact["folder"]
    blind = [report for report in reports if not report.fact["seen"]]
    if not blind:
        return ok(SHARED, f"{folder} is the same for all ranks" if len(reports) > 1 else f"{folder}, for one rank")
    return warning(
        SHARED,
        f"{named(blind)} does not see the files of rank 0 in {folder}: each host has a disk of its own, which is "
        "enough for replicated training (rank 0 saves) but not for sharded; set --out to a folder on a shared disk",
    )


def measure_speed(seat: CheckContext) -> Fact:
    """How fast one rank of each host brings bytes to the disk; skipped where room is short."""
    folder = existing(seat.out)
    if not seat.speaks_for_host or shutil.disk_usage(folder).free < 4 * _WRITTEN:
        return {}
    data = secrets.token_bytes(1 << 20)
    inside = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        began = time.perf_counter()
        with open(inside / "file", "wb") as file:
            for _ in range(_WRITTEN // len(data)):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return {"bytes_per_s": _WRITTEN / (time.perf_counter() - began), "bytes": _WRITTEN}
    finally:
        shutil.rmtree(inside, ignore_errors=True)


def judge_speed(reports: RankReports) -> list[Finding]:
    """Only told: what is too slow depends on what is saved."""
    name = "disk speed"
    told: list[RankReport] = [report for report in reports if report.fact]
    if not told:
        return [warning(name, "not measured, because there is too little room: choose another --out")]
    slowest = min(told, key=lambda report: report.fact["bytes_per_s"])
    return [ok(name, f"{rate(slowest.fact['bytes_per_s'])} with fsync, by one rank on {slowest.host}")]


_HANGS = "the disk behind --out does not answer, perhaps a dead network mount; look at its mount, or choose another"
EXAM = Check("disk", measure, judge, _HANGS)
SPEED = Check("disk speed", measure_speed, judge_speed, _HANGS)
