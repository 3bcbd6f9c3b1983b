"""Exit reports: why a rank ended. A rank writes one for its launcher, and one into the run directory."""

import os
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.core.json_files import Json, read_json, write_json
from samestep.core.launch_env import FOLDER
from samestep.core.native_output import without_native_frames
from samestep.core.typed_json import from_json

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The file in which a failed rank writes its exit report. The launcher sets one for each rank, as torchrun does."""
_FAILURE = "failure.json"


@dataclass(frozen=True)
class ExitReport:
    """Why a rank ended."""

    text: str
    code: int
    rank: int = 0
    host: str = ""
    echo: bool = False
    """Whether this only repeats the failure of another rank, as this rank saw it."""
    traceback: str = ""
    """Empty where the text is enough."""
    time: float = 0.0
    retry_batch_size: int | None = None
    """The batch_size with which another attempt may succeed."""
    retry_text: str = ""
    """What that changes, as text that follows "restarting from the last checkpoint"."""
    kind: str = "crashed"
    """user, failed, diverged, disk, hung, memory, interrupted, or crashed: an unexpected exception."""

    @classmethod
    def from_error(cls, error: BaseException, code: int, *, plain: bool, **more: Any) -> "ExitReport":
        """The report of a rank that ends with `error`; a `plain` one needs no traceback."""
        text = without_native_frames(str(error) if plain else f"{type(error).__name__}: {error}")
        trace = "" if plain else without_native_frames("".join(traceback.format_exception(error)))
        rank = int(os.environ.get("RANK", "0"))
        kind = getattr(error, "kind", "crashed")
        return cls(text, code, rank, socket.gethostname(), traceback=trace, time=time.time(), kind=kind, **more)

    def write(self, env: Mapping[str, str]) -> bool:
        """Write it for the launcher, in the format that torchrun's own summary reads.

        Returns whether our launcher will print it; otherwise the rank has to print it itself.
        """
        path = env.get(ERROR_FILE)
        if not path:
            return False
        stack = {"py_callstack": self.traceback, "timestamp": str(int(self.time))}
        try:
            write_json(Path(path), {"message": {"message": self.text, "extraInfo": stack}, "samestep": asdict(self)})
        except OSError:  # the disk is full, which may be the failure itself: then the rank must print it
            return False
        return FOLDER in env

    @classmethod
    def from_error_file(cls, data: Mapping[str, Json]) -> "ExitReport | None":
        """What `write` wrote; None for a rank that ended without a report."""
        return parse_exit_report(data.get("samestep"))


def parse_exit_report(data: Json) -> ExitReport | None:
    """An exit report from its JSON, maybe written by another version; None when it is not one."""
    try:
        return from_json(ExitReport, data)
    except ValueError:
        return None


def write_failure(folder: Path, report: ExitReport) -> None:
    """For a launcher: pass to its caller why the run ended."""
    write_json(folder / _FAILURE, asdict(report))


def read_failure(folder: Path) -> ExitReport | None:
    """Why a launch failed; None if it did not."""
    return parse_exit_report(read_json(folder / _FAILURE))
