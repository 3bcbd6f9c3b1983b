"""The events of a run, and the exit reports of its ranks, as files in its directory for other programs to read."""

import logging
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.core.exit_report import ExitReport
from samestep.core.json_files import JsonLines, write_json
from samestep.core.rundir import RunDir
from samestep.core.safe_files import open_file
from samestep.core.status import set_failed, set_status

logger = logging.getLogger(__name__)
_RESERVED_BYTES = 1 << 15


@dataclass(frozen=True)
class RunEvents:
    """Writes the events and the status of a run; rank 0 alone writes, every rank logs."""

    rundir: RunDir
    is_main: bool

    def event(self, kind: str, **details: Any) -> None:
        """Append one line to events.jsonl."""
        logger.info("%s %s", kind, details)
        if self.is_main:
            JsonLines(self.rundir.events).append({"time": time.time(), "kind": kind, **details})

    def status(self, status: str, **details: Any) -> None:
        if self.is_main:
            set_status(self.rundir, status, **details)


def reset_watch_folder(rundir: RunDir) -> None:
    """Remove the exit reports of an earlier launch, and reserve disk space for those of this one."""
    shutil.rmtree(rundir.watch, ignore_errors=True)
    with suppress(OSError):
        rundir.watch.mkdir(exist_ok=True)
        with open_file(reserved_space_file(rundir), "wb") as file:
            file.write(os.urandom(_RESERVED_BYTES))  # random, since zeros may take no space


def reserved_space_file(rundir: RunDir) -> Path:
    """A file that is deleted to make space for an exit report when the disk is full."""
    return rundir.watch / ".spare"


def write_exit_report(rundir: RunDir, report: ExitReport, *, is_main: bool) -> None:
    """Write the exit report of this rank; rank 0 also sets the status to failed. What cannot be written is left out."""
    with suppress(OSError, ValueError, MemoryError):
        try:
            _write(rundir, report, is_main)
        except OSError:  # the disk is full, perhaps the reason of the failure: use the reserved space
            reserved_space_file(rundir).unlink(missing_ok=True)
            _write(rundir, report, is_main)


def _write(rundir: RunDir, report: ExitReport, is_main: bool) -> None:
    write_json(rundir.exit_report(report.rank), asdict(report))
    if is_main:
        set_failed(rundir, report)
