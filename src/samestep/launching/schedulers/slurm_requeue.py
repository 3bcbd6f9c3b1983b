"""What the script of a SLURM job calls after a run stopped before its end, inside the job:

    python -m samestep.launching.schedulers.slurm_requeue SCRIPT MOST GRACE

It queues the job again, unless that was done MOST times already or does not help, and says what it did.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, UserError
from samestep.core.output import print_text
from samestep.core.rundir import RunDir
from samestep.launching.schedulers.requeue import count_launch

_TIMEOUT = 60.0
_SLACK = 120.0
"""Seconds by which SLURM may send the signal before the grace time begins: it checks about twice a minute."""


def main(args: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Exit code 0: it queues again, was cancelled, or what to type was printed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a job that queues again is ended at once, before this has said so
    script, most, grace = args
    number, requeues = env["SLURM_JOB_ID"], int(env.get("SLURM_RESTART_COUNT") or 0)
    shown = _scontrol("show", "job", "--oneliner", number)[1]
    state = _field(shown, "JobState")
    if state not in ("RUNNING", ""):
        return EXIT_DONE  # it was cancelled, or SLURM itself queues it again
    stopped = count_launch(RunDir(Path(script).parents[1]), reached_limit=reached_limit(shown, float(grace)))
    if why_not := stopped.why_not_again(requeues, int(most)):
        longer = ["--time=LONGER"] if stopped.needs_time else []
        print_text(f"samestep: {stopped}; not queued again: {why_not}; go on with: {_by_hand(script, *longer)}")
        return EXIT_DONE
    code, said = _scontrol("requeue", number)
    if code == 0:
        print_text(f"samestep: {stopped}; the job queues again and goes on from there")
        return EXIT_DONE
    if _field(_scontrol("show", "job", "--oneliner", number)[1], "JobState") not in ("RUNNING", ""):
        return EXIT_DONE  # SLURM was faster
    answer = " ".join(said.split()) or "nothing"
    print_text(f"samestep: {stopped}; not queued again: SLURM says {answer}; go on with: {_by_hand(script)}")
    return EXIT_DONE


def _by_hand(script: str, *options: str) -> str:
    return shlex.join(["sbatch", *options, script])


def reached_limit(shown: str, grace: float) -> bool:
    """Whether a job was stopped for its time limit, by what `scontrol show job` says; true where that is not known."""
    try:
        limit, used = (parse_duration(_field(shown, name)) for name in ("TimeLimit", "RunTime"))
    except UserError:
        return _field(shown, "TimeLimit") != "UNLIMITED"
    return used >= limit - grace - _SLACK


def _field(shown: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", shown)
    return found[1] if found else ""


def _scontrol(*args: str) -> tuple[int, str]:
    """The exit code of scontrol, and what it said."""
    try:
        done = subprocess.run(
            ["scontrol", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError) as error:
        return EXIT_FAILURE, str(error)
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
