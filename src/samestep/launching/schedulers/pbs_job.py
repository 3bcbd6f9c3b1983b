"""What the script of a PBS job calls, inside the job: `python -m samestep.launching.schedulers.pbs_job VERB SCRIPT ...`

    begin SCRIPT GRACE [SECONDS]   records the job, and prints after how many seconds the run has to stop
    watch SCRIPT                   says so if no rank has begun to train after two minutes
    ended SCRIPT MOST CODE ASKED   submits the script again, unless it was MOST times already or does not help; after a
                                   SIGTERM (ASKED) only if the run stopped by the clock
    next SCRIPT                    submits the script of the next stage

The count of submissions is kept in the run directory: a variable could come from the environment of another run.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_PREEMPTED, UserError
from samestep.core.json_files import JsonLines, read_object_if_readable
from samestep.core.launch_env import BEGAN, TIME_LIMIT, elapsed
from samestep.core.output import print_safely, print_text
from samestep.core.rundir import RunDir
from samestep.launching.schedulers import pbs
from samestep.launching.schedulers.requeue import count_launch
from samestep.launching.schedulers.submit import SubmittedJob, record, recorded

_TIMEOUT = 60.0
LATE = 120.0
"""Seconds after which a job in which nothing trains says so."""


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
    if verb == "watch":
        watch_start(run, env)
        return EXIT_DONE
    if verb == "ended":
        return _ended(run, script, int(rest[0]), _why_stays_ended(run, int(rest[1]), env) if rest[2] else "", current)
    return _submit(run, script, 0, "job {} goes on with the next stage")


def _ended(run: RunDir, script: str, most: int, why_not: str, current: str) -> int:
    """Submit a job again that stopped before the end, or say why not."""
    by_hand = ["qsub", script]
    if not why_not:
        requeues = next((job.requeues for job in recorded(run) if job.job == current), 0)
        stopped = count_launch(run)
        why_not = stopped.why_not_again(requeues, most)
        if not why_not:
            print_text(f"samestep: {stopped}")
            return _submit(run, script, requeues + 1, "job {} goes on from there")
        why_not = f"{stopped}; not submitted again: {why_not}"
        by_hand[1:1] = ["-l", "walltime=LONGER"] if stopped.needs_time else []
    print_text(f"samestep: {why_not}; go on with: {shlex.join(by_hand)}")
    return EXIT_DONE


def _submit(run: RunDir, script: str, requeues: int, then: str) -> int:
    new = _qsub(script)
    if not new:
        return EXIT_FAILURE
    record(run, _submitted(run, script, new, requeues))
    print_text(f"samestep: {then.format(new)}")
    return EXIT_DONE


def _why_stays_ended(run: RunDir, code: int, env: Mapping[str, str]) -> str:
    """Why a job that got SIGTERM does not go on by itself; empty if it does, since its run stopped by the clock."""
    if code == EXIT_PREEMPTED:
        status = read_object_if_readable(run.status)
        by_clock = status.get("reason") == "max_time" and has_launched(run, env)  # else an earlier job wrote that
        return "" if by_clock else "stopped by SIGTERM, so not submitted again"
    limit = float(env.get(TIME_LIMIT) or "inf")
    if elapsed(env) < limit:
        return "ended by SIGTERM before it could save, so not submitted again"
    return "the time limit came before the save was complete, so not submitted again: give it a longer --grace"


def watch_start(run: RunDir, env: Mapping[str, str], late: float = LATE) -> None:
    """Wait until ranks train, for at most `late` seconds; then say that they do not. Ends with the script, too.

    Under Open MPI no rank begins before every node answers, so no rank could say it.
    """
    parent, end = os.getppid(), time.monotonic() + late
    while time.monotonic() < end:
        if has_launched(run, env) or os.getppid() != parent:
            return
        time.sleep(min(1.0, late))
    try:
        nodes = ", ".join(dict.fromkeys(Path(env["PBS_NODEFILE"]).read_text().split()))
    except (KeyError, OSError):
        nodes = "all of them"
    print_text(
        f"samestep: no training after {late:.0f} s: mpiexec may be waiting for a node ({nodes}); see whether each "
        "answers, with ssh NODE true, or end the job",
        flush=True,
    )


def has_launched(run: RunDir, env: Mapping[str, str]) -> bool:
    """Whether the ranks of this job, which began at BEGAN, have met and opened the run."""
    try:
        rows = [row for row in JsonLines(run.events) if row.get("kind") == "launch"]
        return bool(rows) and float(rows[-1]["time"]) >= float(env[BEGAN])
    except (OSError, ValueError, TypeError, KeyError):
        return False


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
