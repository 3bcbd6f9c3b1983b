"""What a launcher passes to its workers through the environment, and the run directory that they name to it.

Launching knows nothing of training and training nothing of launching; they meet here and in exit_report.py.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.records import read_json, write_json

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
_RUN = "run.json"


def preempted_code(env: Mapping[str, str]) -> int:
    """75, but 0 under stock torchrun, which takes any other code for a failure and restarts the run."""
    return EXIT_DONE if "TORCHELASTIC_RUN_ID" in env and not env.get(LAUNCHER) else EXIT_PREEMPTED


def elapsed(env: Mapping[str, str]) -> float:
    """Seconds since the job of this launch began, as far as one is known."""
    return max(0.0, time.time() - float(env[BEGAN])) if BEGAN in env else 0.0


def write_run_path(path: Path, env: Mapping[str, str]) -> None:
    """The first rank of a node tells its launcher which run directory is open."""
    if FOLDER in env:
        write_json(Path(env[FOLDER]) / _RUN, {"path": str(path.absolute())})


def read_run_path(folder: Path) -> Path | None:
    """The run directory of a launch, once it is open."""
    known = read_json(folder / _RUN)
    return Path(known["path"]) if known else None
