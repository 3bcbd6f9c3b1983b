"""Why a rank ended, in a small file that it leaves for its launcher and in the run directory."""

import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.core.launch_env import FOLDER
from samestep.core.records import Json, read_json, write_json

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where a rank leaves word if it fails; the launcher names one a rank, as torchrun does."""
_FAILURE = "failure.json"


@dataclass(frozen=True)
class ExitReport:
    """Why a rank ended."""

    text: str
    code: int
    rank: int = 0
    host: str = ""
    echo: bool = False
    """Only another rank's failure, as it arrived here."""
    traceback: str = ""
    """Empty where the text says it all."""
    time: float = 0.0
    remedy: Sequence[str] = ()
    """Words to add to the command line of another attempt, which may then succeed."""
    remedy_text: str = ""
    """What they change, after "restarting from the last checkpoint"."""
    kind: str = "crashed"
    """user, failed, diverged, disk, hung, memory, interrupted, or crashed: an exception that nobody foresaw."""

    @classmethod
    def of(cls, error: BaseException, code: int, *, plain: bool, **more: Any) -> "ExitReport":
        """The word of a rank that ends with `error`; a `plain` one needs no traceback."""
        text = str(error) if plain else f"{type(error).__name__}: {error}"
        trace = "" if plain else "".join(traceback.format_exception(error))
        rank = int(os.environ.get("RANK", "0"))
        kind = getattr(error, "kind", "crashed")
        return cls(text, code, rank, socket.gethostname(), traceback=trace, time=time.time(), kind=kind, **more)

    def leave(self, env: Mapping[str, str]) -> bool:
        """Write it where the agent looks, in the form that torchrun's own summary understands; false: nobody looks."""
        path = env.get(ERROR_FILE)
        if not path:
            return False
        stack = {"py_callstack": self.traceback, "timestamp": str(int(self.time))}
        try:
            write_json(Path(path), {"message": {"message": self.text, "extraInfo": stack}, "samestep": asdict(self)})
        except OSError:  # the disk is full, perhaps the very failure: then it must be printed
            return False
        return FOLDER in env

    @classmethod
    def read(cls, data: Mapping[str, Json]) -> "ExitReport | None":
        """What `leave` wrote; None when a rank ended without a word."""
        return cls(**data["samestep"]) if "samestep" in data else None


def write_failure(folder: Path, word: ExitReport) -> None:
    """A launcher tells whoever called it why the run ended."""
    write_json(folder / _FAILURE, asdict(word))


def read_failure(folder: Path) -> ExitReport | None:
    """Why a launch ended, if it did not end well."""
    known = read_json(folder / _FAILURE)
    return ExitReport(**known) if known else None
