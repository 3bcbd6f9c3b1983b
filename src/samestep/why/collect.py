"""Reads what is left of a run. Any file may be missing, truncated, or deleted while it is read: the run may be alive.

No lock is taken, not even for a moment, so reading does not disturb the run.
"""

import fcntl
import json
import os
import re
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.errors import UserError
from samestep.core.exit_report import ExitReport, parse_exit_report
from samestep.core.logs import FAILURES
from samestep.core.records import Json, parse_json_lines, read_json_if_readable
from samestep.core.rundir import RunDir
from samestep.train.run_record import RunRecord, stage_folders
from samestep.why.records import Evidence, Heartbeat, Lock
from samestep.why.scheduler import kernel_kill, last_job

_TAIL = 1 << 17
"""Bytes that are read at the end of a log or of the metrics."""
_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) (\S+): (.*)$", re.DOTALL)
_ECHO = re.compile(r"rank \d+ on \S+ failed: ")
_FLOCK = "hhqqi4x"  # type, whence, start, length, process: `struct flock` of 64-bit Linux


def collect_evidence(rundir: RunDir) -> Evidence:
    """All that can be found out about a run, on any host that sees its directory."""
    record = RunRecord.read(rundir)
    status, lock = read_json_if_readable(rundir.status) or {}, read_lock(rundir.path / "lock")
    launch, ended, save_failed, extended = _events(rundir)
    heartbeats, exit_reports = _heartbeats(rundir), _exit_reports(rundir)
    try:
        checkpoint, unreadable = _checkpoint(rundir), ""
    except UserError as error:
        checkpoint, unreadable = None, str(error)
    here = socket.gethostname()
    own = [heartbeat.pid for heartbeat in heartbeats if heartbeat.host == here]
    return Evidence(
        rundir.path,
        time.time(),
        here,
        status,
        launch,
        ended,
        save_failed,
        extended,
        exit_reports or _reports_from_logs(rundir),
        not exit_reports,
        read_json_if_readable(rundir.stall_report),
        heartbeats,
        lock,
        last_job((read_json_if_readable(rundir.job / "job.json") or {}).get("jobs", ())),
        _kernel_message(own, lock),
        checkpoint,
        _step(rundir, status.get("stage"), heartbeats, checkpoint),
        _last_change(rundir),
        shutil.disk_usage(rundir.path).free,
        int(record.config.get("batch_size", 0)) if record else 0,
        frozenset(str(path.relative_to(rundir.path)) for path in _files(rundir)),
        unreadable,
    )


def read_lock(path: Path) -> Lock:
    """The lock at `path`: which process holds it, or held it last."""
    try:
        with open(path, "rb") as file:
            known = _holder(file.read().decode(errors="replace"))
            return Lock(_is_held(file.fileno()), str(known.get("host", "")), int(known.get("pid", 0)))
    except OSError:
        return Lock()


def _is_held(handle: int) -> bool | None:
    """None where the file system or the operating system cannot say."""
    if sys.platform != "linux":
        return None
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, query)
    except OSError:
        return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _holder(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:  # its writer was killed while it wrote
        return {}


def _lines(path: Path) -> Iterator[str]:
    """The last lines of a file; the first of them may be cut."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            yield from file.read().decode(errors="replace").splitlines()
    except OSError:
        return


def _rows(path: Path) -> Iterator[dict[str, Json]]:
    return parse_json_lines(_lines(path))  # the first line is cut, or the last is being written


def _events(rundir: RunDir) -> tuple[Json, Json, str, Json]:
    """The last launch, how it ended according to the launcher, why its saves fail, if they do, and the last change of
    the run's length."""
    launch = ended = extended = None
    failed = ""
    for row in _rows(rundir.events):
        kind = row.get("kind")
        if kind == "launch":
            launch, ended, failed = row, None, ""
        elif kind == "ended":
            ended = row
        elif kind == "extended":
            extended = row
        elif kind in ("save", "save_failed"):
            failed = str(row.get("why", "")) if kind == "save_failed" else ""
    return launch, ended, failed, extended


def _exit_reports(rundir: RunDir) -> list[ExitReport]:
    found = [parse_exit_report(read_json_if_readable(path)) for path in sorted(rundir.watch.glob("rank_*_word.json"))]
    return [report for report in found if report is not None]


def _heartbeats(rundir: RunDir) -> list[Heartbeat]:
    found = []
    for path in rundir.watch.glob("rank_*.json"):
        data = read_json_if_readable(path) if re.fullmatch(r"rank_\d+\.json", path.name) else None
        if isinstance(data, dict) and "rank" in data:
            found.append(_heartbeat(data, path))
    return sorted(found, key=lambda heartbeat: heartbeat.rank)


def _heartbeat(data: dict[str, Json], path: Path) -> Heartbeat:
    """The age is measured by two clocks, since that of the rank's host or that of the disk may be wrong."""
    stamps = [float(data.get("time", 0.0)), _modified(path)]
    age = min(abs(time.time() - stamp) for stamp in stamps)
    known = {field.name for field in fields(Heartbeat)}
    rest = {"host": "", "pid": 0, **{name: value for name, value in data.items() if name in known}}
    return Heartbeat(**{**rest, "age": age})


def _reports_from_logs(rundir: RunDir) -> list[ExitReport]:
    """The failure at the end of each rank's log, if its last launch ended with one: older runs have no exit reports."""
    found = []
    for path in sorted((rundir.path / "logs").glob("rank_*.log")):
        entries = _entries(path)
        launches = [number for number, entry in enumerate(entries) if entry[2].startswith("launch {")]
        for level, name, message in entries[launches[-1] if launches else 0 :]:
            if (level, name) == ("ERROR", FAILURES):
                text, _, trace = message.partition("\n")
                echo = _ECHO.match(text) is not None
                rank, kind = int(path.stem.partition("_")[2]), "crashed" if trace else "failed"
                found.append(ExitReport(text, 1, rank, echo=echo, traceback=trace, kind=kind))
    return found


def _entries(path: Path) -> list[tuple[str, str, str]]:
    """Level, logger and message of every line of a log; a traceback belongs to the line before it."""
    entries: list[tuple[str, str, str]] = []
    for line in _lines(path):
        match = _LINE.match(line)
        if match:
            entries.append((match[1], match[2], match[3]))
        elif entries:
            level, name, message = entries[-1]
            entries[-1] = (level, name, f"{message}\n{line}")
    return entries


def _kernel_message(processes: Sequence[int], lock: Lock) -> str:
    return "" if lock.held or not processes else kernel_kill(processes)


def _checkpoint(rundir: RunDir) -> tuple[str, int] | None:
    """Stage and step of the newest checkpoint, by modification time, since stages follow each other."""
    found = []
    for folder in stage_folders(rundir):
        steps = checkpoint_folders(folder)
        if steps:
            found.append((_modified(steps[max(steps)]), folder.name, max(steps)))
    return max(found)[1:] if found else None


def _step(
    rundir: RunDir, stage: str | None, heartbeats: Sequence[Heartbeat], checkpoint: tuple[str, int] | None
) -> int | None:
    """The last step that is known to be done in the stage that ran last."""
    written = [row["step"] for row in _rows(rundir.metrics) if row.get("stage") == stage and "step" in row]
    known = [*written[-1:], *(beat.step for beat in heartbeats if beat.stage == stage and beat.step is not None)]
    known += [checkpoint[1]] if checkpoint and checkpoint[0] == stage else []
    return max(known, default=None)


def _last_change(rundir: RunDir) -> tuple[str, float] | None:
    changing = [path for path in (rundir.status, rundir.events, rundir.metrics) if path.exists()] + _files(rundir)
    if not changing:
        return None
    last = max(changing, key=_modified)
    return str(last.relative_to(rundir.path)), _modified(last)


def _files(rundir: RunDir) -> list[Path]:
    found = [path for folder in (rundir.watch, rundir.path / "logs") for path in folder.glob("[!.]*")]
    return [path for path in found if _size(path)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
