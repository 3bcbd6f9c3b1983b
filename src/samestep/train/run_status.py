"""How a run stands and what happened to it, as files in its directory, for whoever looks from outside."""

import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.core.exit_report import ExitReport
from samestep.core.records import Json, JsonLines, read_json, write_json
from samestep.core.rundir import RunDir

logger = logging.getLogger(__name__)
_SPARE = 1 << 15


@dataclass(frozen=True)
class RunEvents:
    """Writes the events and the status of a run; rank 0 alone writes, every rank logs."""

    rundir: RunDir
    is_main: bool

    def event(self, kind: str, **details: Any) -> None:
        """Something happened: one line in events.jsonl."""
        logger.info("%s %s", kind, details)
        if self.is_main:
            JsonLines(self.rundir.events).append({"time": time.time(), "kind": kind, **details})

    def status(self, status: str, **details: Any) -> None:
        """The run stands like this from now on."""
        if self.is_main:
            set_status(self.rundir, status, **details)


def set_status(rundir: RunDir, status: str, **details: Json) -> None:
    """How the run stands, for whoever looks from outside."""
    write_json(rundir.status, {"status": status, **details})


def is_done(status: Mapping[str, Json]) -> bool:
    """Whether all of a run is done: where the status names a stage, only that one is."""
    return status.get("status") == "done" and "stage" not in status


def begin_watch(rundir: RunDir) -> None:
    """What ranks of an earlier launch left to say is void. Room is taken for what those of this one may have to."""
    shutil.rmtree(rundir.watch, ignore_errors=True)
    with suppress(OSError):
        rundir.watch.mkdir(exist_ok=True)
        spare(rundir).write_bytes(os.urandom(_SPARE))  # random, for zeros may take no room


def spare(rundir: RunDir) -> Path:
    """A file to be given up when the disk is full and a last word must be left."""
    return rundir.watch / ".spare"


def leave_word(rundir: RunDir, word: ExitReport, *, is_main: bool) -> None:
    """Leave the word of this rank; rank 0 also says that the run failed. What cannot be written is left out."""
    with suppress(OSError, ValueError, MemoryError):
        try:
            _write(rundir, word, is_main)
        except OSError:  # the disk is full, perhaps the very failure: there is room set aside
            spare(rundir).unlink(missing_ok=True)
            _write(rundir, word, is_main)


def _write(rundir: RunDir, word: ExitReport, is_main: bool) -> None:
    write_json(rundir.exit_report(word.rank), asdict(word))
    status = read_json(rundir.status) or {}
    if is_main and not is_done(status):
        where = {name: status[name] for name in ("stage", "step", "steps") if name in status}
        set_status(rundir, "failed", **where, kind=word.kind, text=word.text)
