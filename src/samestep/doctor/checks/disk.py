"""The folder where runs go: free space, atomic rename, locks, whether all ranks see the same folder, and speed; and
that a checkpoint that all ranks save there together is loaded with every value, also of those that differ by rank."""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from samestep.checkpoint.across_ranks import is_disk_shared
from samestep.checkpoint.store import Store
from samestep.core.disk_space import existing_folder
from samestep.core.json_files import Json, sync_folder, write_atomically
from samestep.doctor.check import Check
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReport,
    RankReports,
    describe_ranks,
    failed,
    format_bytes,
    format_rate,
    format_seconds,
    ok,
    warning,
)
from samestep.doctor.rendezvous import CheckContext, wait_until

SPACE, RENAME, SHARED = "disk space", "disk: rename and locks", "disk: shared"
LEAST, GOOD = 1 << 30, 20 << 30
"""Bytes that must be free, and that are enough for some checkpoints."""
_APPEARS = 2.0
"""Seconds that a file may take to appear on another host, since network disks are slow."""
_WRITTEN = 64 << 20
_PREFIX = ".samestep-doctor-"


def measure(context: CheckContext) -> Measured:
    """Try the folder from this rank. Nothing is left in it."""
    folder = existing_folder(context.out)
    measured: dict[str, object] = {"folder": str(folder), "out": str(context.out), "seen": _sees(context, folder)}
    try:
        usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
        measured.update(free=usage.free, total=usage.total)
        measured["full_of_files"] = inodes.f_files > 0 and inodes.f_favail == 0
        return {**measured, "wrong": "", "seconds": probe(folder)}
    except (OSError, AssertionError) as error:
        return {**measured, "wrong": getattr(error, "strerror", None) or str(error)}


def probe(folder: Path) -> float:
    """Write, rename over a file, and lock, as runs do; the seconds until a small file is safely on disk."""
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


def _sees(context: CheckContext, folder: Path) -> bool:
    """Whether a file that rank 0 puts into its folder is there for this rank as well."""
    if context.rank > 0:
        path = context.channel.wait_for("token", context.timeout / 2)
        seen = not path or _in_time(Path(path).exists, _APPEARS)  # an empty path: rank 0 could not write
        context.channel.add("looked", 1)
        return seen
    token = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        token.touch()
        sync_folder(folder)
    except OSError:  # `probe` reports it
        context.channel.put("token", "")
        return True
    context.channel.put("token", str(token))
    _in_time(lambda: context.channel.add("looked") >= len(context.present) - 1, context.timeout / 2)
    with suppress(OSError):
        token.unlink()
    return True


def _in_time(ready: Callable[[], bool], timeout: float) -> bool:
    try:
        wait_until(ready, timeout)
    except TimeoutError:
        return False
    return True


def compare(reports: RankReports) -> list[Finding]:
    """Free space, rename, sharing."""
    return [_space(reports), _rename(reports), _shared(reports)]


def _space(reports: RankReports) -> Finding:
    readable = [report for report in reports if "free" in report.measured]
    if not readable:
        return failed(
            SPACE, f"{describe_ranks(reports)} cannot look at {reports[0].measured['folder']}: choose another --out"
        )
    full = [report for report in readable if report.measured["full_of_files"]]
    if full:
        return failed(
            SPACE,
            f"{describe_ranks(full)} has no free inodes in {full[0].measured['folder']}, though there may be free "
            "bytes: remove old files, or choose another --out",
        )
    least = min(readable, key=lambda report: report.measured["free"])
    free, total = least.measured["free"], least.measured["total"]
    seen = f"{format_bytes(free)} of {format_bytes(total)} free in {least.measured['folder']}"
    if free >= GOOD:
        return ok(SPACE, seen)
    finding = failed if free < LEAST else warning
    return finding(
        SPACE,
        f"{describe_ranks([least])} has {seen}: checkpoints will soon fill it; remove old runs, or choose another "
        "--out",
    )


def _rename(reports: RankReports) -> Finding:
    wrong = [report for report in reports if report.measured["wrong"]]
    if wrong:
        measured = wrong[0].measured
        return failed(
            RENAME,
            f"{describe_ranks(wrong)} cannot write, rename and lock in {measured['folder']} ({measured['wrong']}): it "
            "is full, read-only, owned by another user, or on a disk without locks; choose another --out",
        )
    slowest = max(reports, key=lambda report: report.measured["seconds"])
    return ok(RENAME, f"atomic; a small file is safe after {format_seconds(slowest.measured['seconds'])}")


def _shared(reports: RankReports) -> Finding:
    folder = reports[0].measured["folder"]
    blind = [report for report in reports if not report.measured["seen"]]
    if not blind:
        return ok(SHARED, f"{folder} is the same for all ranks" if len(reports) > 1 else f"{folder}, for one rank")
    return warning(
        SHARED,
        f"{describe_ranks(blind)} does not see the files of rank 0 in {folder}: each host has a disk of its own, "
        "which is enough for replicated training (rank 0 saves) but not for sharded; set --out to a folder on a "
        "shared disk",
    )


def measure_speed(context: CheckContext) -> Measured:
    """How fast one rank of each host writes bytes to the disk; skipped where free space is short."""
    folder = existing_folder(context.out)
    if not context.is_first_on_host or shutil.disk_usage(folder).free < 4 * _WRITTEN:
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


def compare_speed(reports: RankReports) -> list[Finding]:
    """Only reported: what is too slow depends on what is saved."""
    name = "disk speed"
    writers: list[RankReport] = [report for report in reports if report.measured]
    if not writers:
        return [warning(name, "not measured, because there is too little free space: choose another --out")]
    slowest = min(writers, key=lambda report: report.measured["bytes_per_s"])
    return [ok(name, f"{format_rate(slowest.measured['bytes_per_s'])} with fsync, by one rank on {slowest.host}")]


_HANGS = "the disk behind --out does not answer, perhaps a dead network mount; look at its mount, or choose another"
CHECK = Check("disk", measure, compare, _HANGS)
SPEED_CHECK = Check("disk speed", measure_speed, compare_speed, _HANGS)


ROUND_TRIP = "checkpoint round trip"
_TENSORS, _NUMBERS = 8, 1 << 16


class SampleState:
    """A state of tensors that are equal on all ranks, and a text that differs on each rank."""

    def __init__(self, seed: int, rank_text: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {f"part {at}": torch.randn(_NUMBERS, generator=generator) for at in range(_TENSORS)}
        self.rank_text = rank_text

    def state_dict(self) -> dict[str, Any]:
        return self.tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state

    def rank_state(self) -> Json:
        return self.rank_text

    def load_rank_state(self, states: list[Json]) -> None:
        self.rank_text = " ".join(states)


def measure_round_trip(context: CheckContext) -> Measured:
    """Save, load into other values, compare; nothing is left behind."""
    world = context.connected_world()
    folder = Path(world.share(str(existing_folder(context.out) / f".samestep-doctor-{secrets.token_hex(4)}")))
    try:
        store = Store(folder, world, shared=is_disk_shared(folder, world))
        saved, loaded = SampleState(1, f"rank {world.rank}"), SampleState(2, "")
        began = time.perf_counter()
        store.save(1, {"sample": saved}, {})
        seconds = time.perf_counter() - began
        found = store.newest()
        if found is None:
            return {"wrong": "no checkpoint was found after the save", "seconds": seconds}
        store.load(found, {"sample": loaded})
        wrong = [name for name, tensor in saved.tensors.items() if not torch.equal(tensor, loaded.tensors[name])]
        texts = " ".join(f"rank {rank}" for rank in range(world.size))
        if loaded.rank_text != texts:
            wrong.append("the state that differs between ranks")
        return {"wrong": ", ".join(wrong), "seconds": seconds, "shared": store.shared}
    finally:
        world.barrier()
        shutil.rmtree(folder, ignore_errors=True)


def compare_round_trip(reports: RankReports) -> list[Finding]:
    """Every value on every rank."""
    bad = [report for report in reports if report.measured["wrong"]]
    if bad:
        return [
            failed(
                ROUND_TRIP,
                f"{describe_ranks(bad)} did not get back {bad[0].measured['wrong']}: the disk returns other bytes "
                "than were written, or shows them too late; choose another --out",
            )
        ]
    who = "all ranks" if reports[0].measured["shared"] else "rank 0, which alone sees its disk,"
    seconds = max(report.measured["seconds"] for report in reports)
    return [ok(ROUND_TRIP, f"{who} saved 2 MiB in {format_seconds(seconds)}; loaded everywhere, equal in every bit")]


ROUND_TRIP_CHECK = Check(
    ROUND_TRIP,
    measure_round_trip,
    compare_round_trip,
    "the disk behind --out hangs or fails; choose another --out",
    together=True,
)
