"""What a launcher passes to its workers through the environment, and the run directory that they report back.

Launching does not import training, and training does not import launching; this file and exit_report.py connect them.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.json_files import read_json, write_json

LAUNCHER = "SAMESTEP_LAUNCHER"
"""The launcher of this process; not set under stock torchrun."""
LAUNCH_ID = "SAMESTEP_LAUNCH_ID"
"""The same for every attempt of one launch, and unique to it."""
SECRET = "SAMESTEP_SECRET"
"""What the processes of a launch recognise each other by; see secret.py."""
FOLDER = "SAMESTEP_LAUNCH_FOLDER"
"""The folder for reports of the workers of a launch. The launcher prints failures, so workers do not."""
PARENT = "SAMESTEP_PARENT"
"""Process id of the launcher; workers end when it ends."""
GRACE = "SAMESTEP_GRACE"
"""Seconds between a stop request and the end by force."""
BEGAN = "SAMESTEP_BEGAN"
"""When the batch job of this launch began, in seconds since 1970: max_time counts from there."""
TIME_LIMIT = "SAMESTEP_TIME_LIMIT"
"""Seconds after the batch job began at which the run stops and saves; empty or unset: the job tells it by a signal."""
_RUN = "run.json"


def preempted_code(env: Mapping[str, str]) -> int:
    """75, but 0 under stock torchrun, which treats any other code as a failure and restarts the run."""
    return EXIT_DONE if "TORCHELASTIC_RUN_ID" in env and not env.get(LAUNCHER) else EXIT_PREEMPTED


def elapsed(env: Mapping[str, str]) -> float:
    """Seconds since the batch job of this launch began; 0 without one."""
    return max(0.0, time.time() - float(env[BEGAN])) if BEGAN in env else 0.0


def seconds_left(max_time: float | None, env: Mapping[str, str]) -> float | None:
    """Seconds until the run has to stop: `max_time`, or its job's limit if that is sooner; None: there is no limit."""
    limits = [limit for limit in (max_time, float(env.get(TIME_LIMIT) or 0) or None) if limit is not None]
    return min(limits) - elapsed(env) if limits else None


def write_run_path(path: Path, env: Mapping[str, str]) -> None:
    """For the first rank of a node: report to its launcher which run directory is open."""
    if FOLDER in env:
        write_json(Path(env[FOLDER]) / _RUN, {"path": str(path.absolute())})


def forget_run_path(env: Mapping[str, str]) -> None:
    """For rank 0: report to its launcher that the run directory was removed, so that nothing is written there."""
    if FOLDER in env:
        (Path(env[FOLDER]) / _RUN).unlink(missing_ok=True)


def read_run_path(folder: Path) -> Path | None:
    """The run directory of a launch, once it is open; None too if it was removed again."""
    known = read_json(folder / _RUN)
    return Path(known["path"]) if known else None
