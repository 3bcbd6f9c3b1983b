"""What a launcher tells its workers, through the environment, and what they leave for it, in small files.

Launching knows nothing of training and training nothing of launching; they meet here.
"""

import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.records import Json, read_json, write_json

LAUNCHER = "SAMESTEP_LAUNCHER"
"""Who started this process; not set under stock torchrun."""
LAUNCH_ID = "SAMESTEP_LAUNCH_ID"
"""The same for every attempt of one launch, and for nothing else."""
FOLDER = "SAMESTEP_LAUNCH_FOLDER"
"""Where the workers of a launch leave word. Its launcher speaks for them, so they print no failure themselves."""
PARENT = "SAMESTEP_PARENT"
"""The process to end with."""
GRACE = "SAMESTEP_GRACE"
"""Seconds between a request to stop and the end by force."""
BEGAN = "SAMESTEP_BEGAN"
"""When the job began whose time limit this launch has, in seconds since 1970: max_time counts from there."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where a rank leaves word if it fails; the launcher names one a rank, as torchrun does."""
_RUN = "run.json"
_FAILURE = "failure.json"


@dataclass(frozen=True)
class LastWord:
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
    def of(cls, error: BaseException, code: int, *, plain: bool, **more: Any) -> "LastWord":
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
    def read(cls, data: Mapping[str, Json]) -> "LastWord | None":
        """What `leave` wrote; None when a rank ended without a word."""
        return cls(**data["samestep"]) if "samestep" in data else None


def preempted_code(env: Mapping[str, str]) -> int:
    """75, but 0 under stock torchrun, which takes any other code for a failure and restarts the run."""
    return EXIT_DONE if "TORCHELASTIC_RUN_ID" in env and not env.get(LAUNCHER) else EXIT_PREEMPTED


def elapsed(env: Mapping[str, str]) -> float:
    """Seconds since the job of this launch began, as far as one is known."""
    return max(0.0, time.time() - float(env[BEGAN])) if BEGAN in env else 0.0


def tell_run(path: Path, env: Mapping[str, str]) -> None:
    """The first rank of a node tells its launcher which run directory is open."""
    if FOLDER in env:
        write_json(Path(env[FOLDER]) / _RUN, {"path": str(path.absolute())})


def told_run(folder: Path) -> Path | None:
    """The run directory of a launch, once it is open."""
    known = read_json(folder / _RUN)
    return Path(known["path"]) if known else None


def tell_failure(folder: Path, word: LastWord) -> None:
    """A launcher tells whoever called it why the run ended."""
    write_json(folder / _FAILURE, asdict(word))


def told_failure(folder: Path) -> LastWord | None:
    """Why a launch ended, if it did not end well."""
    known = read_json(folder / _FAILURE)
    return LastWord(**known) if known else None
