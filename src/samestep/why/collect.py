"""Reads what is left of a run. Any file may be missing, truncated, or deleted while it is read: the run may be alive.

No lock is taken, not even for a moment, so reading does not disturb the run.
"""

import re
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.errors import UserError
from samestep.core.exit_report import ExitReport, parse_exit_report
from samestep.core.json_files import DamagedFile, Json
from samestep.core.logs import FAILURES
from samestep.core.rundir import RunDir
from samestep.train.record.damaged_files import EVENT, JOB, METRICS, STALL, STALLED_RANK, STATUS, Reader
from samestep.train.record.liveness import Heartbeat, last_modified, read_heartbeats, read_lock
from samestep.train.record.run_record import RunRecord, stage_folders
from samestep.why.records import Evidence
from samestep.why.scheduler import kernel_kill, last_job

_MOST_RANKS = 1 << 20
"""No launch has more; a larger number is damage."""
_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) (\S+): (.*)$", re.DOTALL)
_ECHO = re.compile(r"rank \d+ on \S+ failed: ")


def collect_evidence(rundir: RunDir) -> Evidence:
    """All that can be found out about a run, on any host that sees its directory."""
    reader = Reader(rundir.path)
    status, lock = reader.object(rundir.status, STATUS), read_lock(rundir.path / "lock")
    launch, ended, save_failed, extended = _events(rundir, reader)
    heartbeats, exit_reports = read_heartbeats(rundir, reader), _exit_reports(rundir, reader)
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
        exit_reports or _reports_from_logs(rundir, reader),
        not exit_reports,
        _stall(rundir, reader),
        heartbeats,
        lock,
        last_job(_jobs(rundir, reader)),
        "" if lock.held or not own else kernel_kill(own),
        checkpoint,
        _step(rundir, reader, status.get("stage"), heartbeats, checkpoint),
        _last_change(rundir),
        shutil.disk_usage(rundir.path).free,
        _batch_size(rundir, reader),
        frozenset(str(path.relative_to(rundir.path)) for path in _files(rundir)),
        unreadable,
        _damage(rundir, reader),
    )


def _events(rundir: RunDir, reader: Reader) -> tuple[Json, Json, str, Json]:
    """The last launch, how it ended according to the launcher, why its saves fail, if they do, and the last change of
    the run's length."""
    launch = ended = extended = None
    failed = ""
    for row in reader.rows(rundir.events, EVENT):
        kind = row.get("kind")
        if kind == "launch":
            row["world"] = min(max(row.get("world") or 0, 0), _MOST_RANKS)
            launch, ended, failed = row, None, ""
        elif kind == "ended":
            ended = row
        elif kind == "extended":
            extended = row
        elif kind in ("save", "save_failed"):
            failed = row.get("why") or "" if kind == "save_failed" else ""
    return launch, ended, failed, extended


def _exit_reports(rundir: RunDir, reader: Reader) -> list[ExitReport]:
    found = []
    for path in sorted(rundir.watch.glob("rank_*_exit.json")):
        report = parse_exit_report(reader.object(path, {}))
        if report is None or not 0 <= report.rank < _MOST_RANKS:
            reader.add(path, "it is no exit report")
        else:
            found.append(report)
    return found


def _stall(rundir: RunDir, reader: Reader) -> Json:
    stall = reader.object(rundir.stall_report, STALL)
    reports = reader.objects(rundir.stall_report, stall.get("reports"), STALLED_RANK)
    return {**stall, "reports": reports} if stall else None


def _jobs(rundir: RunDir, reader: Reader) -> list[dict[str, Json]]:
    path = rundir.job / "job.json"
    jobs = reader.objects(path, reader.object(path, {"jobs": list}).get("jobs"), JOB)
    return [job for job in jobs if job.get("job")]


def _batch_size(rundir: RunDir, reader: Reader) -> int:
    try:
        record = RunRecord.read(rundir)
    except DamagedFile as error:
        reader.add(rundir.config, error.why)
        return 0
    size = record.config.get("batch_size", 0) if record else 0
    return size if isinstance(size, int) else 0


def _damage(rundir: RunDir, reader: Reader) -> dict[str, str]:
    """What is wrong with files, also with those that are needed to resume the run alone."""
    done = (rundir.done(folder.name) for folder in rundir.artifacts("x").parent.glob("*"))
    for path in (rundir.first_launch, *sorted(done)):
        reader.object(path, {})
    return reader.damage


def _reports_from_logs(rundir: RunDir, reader: Reader) -> list[ExitReport]:
    """The failure at the end of each rank's log, if its last launch ended with one: older runs have no exit reports."""
    found = []
    for path in sorted((rundir.path / "logs").glob("rank_*.log")):
        entries = _entries(reader.lines(path))
        launches = [number for number, entry in enumerate(entries) if entry[2].startswith("launch {")]
        for level, name, message in entries[launches[-1] if launches else 0 :]:
            if (level, name) == ("ERROR", FAILURES):
                text, _, trace = message.partition("\n")
                echo = _ECHO.match(text) is not None
                rank, kind = int(path.stem.partition("_")[2]), "crashed" if trace else "failed"
                found.append(ExitReport(text, 1, rank, echo=echo, traceback=trace, kind=kind))
    return found


def _entries(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    """Level, logger and message of every line of a log; a traceback belongs to the line before it."""
    entries: list[tuple[str, str, str]] = []
    for line in lines:
        match = _LINE.match(line)
        if match:
            entries.append((match[1], match[2], match[3]))
        elif entries:
            level, name, message = entries[-1]
            entries[-1] = (level, name, f"{message}\n{line}")
    return entries


def _checkpoint(rundir: RunDir) -> tuple[str, int] | None:
    """Stage and step of the newest checkpoint, by modification time, since stages follow each other."""
    found = []
    for folder in stage_folders(rundir):
        steps = checkpoint_folders(folder)
        if steps:
            found.append((last_modified(steps[max(steps)]), folder.name, max(steps)))
    return max(found)[1:] if found else None


def _step(
    rundir: RunDir,
    reader: Reader,
    stage: str | None,
    heartbeats: Sequence[Heartbeat],
    checkpoint: tuple[str, int] | None,
) -> int | None:
    """The last step that is known to be done in the stage that ran last."""
    rows = list(reader.rows(rundir.metrics, METRICS))
    written = [row["step"] for row in rows if row.get("stage") == stage and row.get("step") is not None]
    known = [*written[-1:], *(beat.step for beat in heartbeats if beat.stage == stage and beat.step is not None)]
    known += [checkpoint[1]] if checkpoint and checkpoint[0] == stage else []
    return max(known, default=None)


def _last_change(rundir: RunDir) -> tuple[str, float] | None:
    changing = [path for path in (rundir.status, rundir.events, rundir.metrics) if path.exists()] + _files(rundir)
    if not changing:
        return None
    last = max(changing, key=last_modified)
    return str(last.relative_to(rundir.path)), last_modified(last)


def _files(rundir: RunDir) -> list[Path]:
    found = [path for folder in (rundir.watch, rundir.path / "logs") for path in folder.glob("[!.]*")]
    return [path for path in found if _size(path)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
