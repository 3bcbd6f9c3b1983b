"""What the script of a PBS job calls: `python -m samestep.launch.schedulers.pbs_job VERB SCRIPT ...`, inside the job.

    begin SCRIPT GRACE [SECONDS]   records the job, and prints after how many seconds the run has to stop
    again SCRIPT MOST              submits the script again, unless it was MOST times already
    next SCRIPT                    submits the script of the next stage

The count of submissions is kept in the run directory: a variable could come from the environment of another run.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, UserError
from samestep.core.output import print_safely, print_text
from samestep.core.rundir import RunDir
from samestep.launch.schedulers import pbs
from samestep.launch.schedulers.submit import SubmittedJob, record, recorded

_TIMEOUT = 60.0


def main(args: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Exit code 0: done; 1: the script prints what to type."""
    verb, script, *rest = args
    run, current = RunDir(Path(script).parents[1]), env.get("PBS_JOBID", "")
    if verb == "begin":
        if current not in [job.job for job in recorded(run)]:  # it was submitted by hand
            record(run, _submitted(run, script, current))
        limit = stop_after(current, float(rest[0]), float(rest[1]) if rest[1:] else None)
        print_text("" if limit is None else str(limit))
        return EXIT_DONE
    requeues = 0
    if verb == "again":
        requeues = 1 + next((job.requeues for job in recorded(run) if job.job == current), 0)
        if requeues > int(rest[0]):
            return EXIT_FAILURE
    new = _qsub(script)
    if not new:
        return EXIT_FAILURE
    record(run, _submitted(run, script, new, requeues))
    what = "stopped and saved; job {} goes on from there" if verb == "again" else "job {} goes on with the next stage"
    print_text(f"samestep: {what.format(new)}")
    return EXIT_DONE


def stop_after(job: str, grace: float, asked: float | None) -> int | None:
    """Seconds after which a run stops itself. PBS says the limit, which may be the queue's; None: there is no limit."""
    limit = asked
    shown = re.search(r"^\s*Resource_List\.walltime = (\S+)", _output_of("qstat", "-f", job), re.MULTILINE)
    if shown:
        try:
            limit = parse_duration(shown[1])
        except UserError:
            limit = asked
    if limit is None:
        text = "samestep: PBS names no time limit of this job, so the run cannot stop and save before one"
        print_safely(text, sys.stderr)
        return None
    return max(1, int(limit - grace), int(limit // 2))


def _submitted(run: RunDir, script: str, number: str, requeues: int = 0) -> SubmittedJob:
    stages: Sequence[str] = next((job.stages for job in recorded(run) if job.script == script), [])
    return SubmittedJob(number, "pbs", script, str(run.job / f"{number}.out"), stages, time.time(), requeues)


def _qsub(script: str) -> str:
    printed = _output_of(*pbs.submission(script))
    return pbs.job_id(printed) if printed.strip() else ""


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print_safely(f"samestep: {command[0]}: {error}", sys.stderr)
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
