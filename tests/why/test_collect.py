"""Reading a run: files of several versions and states, the lock, schedulers and the kernel."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from samestep.core.exit_report import ExitReport
from samestep.core.json_files import write_json
from samestep.core.rundir import RunDir
from samestep.train.record.liveness import read_lock
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from samestep.why.scheduler import last_job, state_in_output

HOLD = "import sys; from pathlib import Path; from samestep.core.rundir import RunDir; "
HOLD += "lock = RunDir(Path(sys.argv[1])).lock(); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path / "a")
    write_json(rundir.config, {"recipe": "toy", "config": {"batch_size": 4}})
    return rundir


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program first in PATH; those that are installed here are not used."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")

    def make(name: str, body: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    for name in ("scontrol", "sacct", "dmesg"):
        make(name, "exit 1")
    return make


def lines(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.timeout(900)
def test_a_held_lock_is_seen_without_disturbing_its_holder(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "lock").held is None, "there is none"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = (tmp_path / "lock").stat()
        found = read_lock(tmp_path / "lock")
        assert (found.held, found.pid) == (True, holder.pid)
        after = (tmp_path / "lock").stat()
        assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
        assert read_lock(tmp_path / "lock").held, "reading took nothing from the holder"
    finally:
        holder.communicate(input="")
    found = read_lock(tmp_path / "lock")
    assert (found.held, found.pid) == (False, holder.pid)


def test_an_empty_run_is_enough(run: RunDir) -> None:
    assert diagnose(collect_evidence(run)).verdict == "not_started"


def test_files_that_are_cut_or_strange_do_no_harm(run: RunDir) -> None:
    run.watch.mkdir()
    run.status.write_text('{"status": "run')
    run.stall_report.write_text("")
    run.heartbeat(0).write_text('{"rank": 0, "from a later version": 3}')
    run.heartbeat(1).write_text("[")
    run.exit_report(0).write_text('{"text": "bad", "code": 1, "from a later version": 3}')
    run.exit_report(1).write_text("null")
    run.events.write_text('{"kind": "launch", "world": 2}\n{"kind": "la')
    found = collect_evidence(run)
    assert [report.text for report in found.exit_reports] == ["bad"]
    assert [beat.rank for beat in found.heartbeats] == [0]
    assert (found.world, found.batch_size) == (2, 4)
    assert diagnose(found).verdict == "crashed"


def test_only_the_last_launch_counts(run: RunDir) -> None:
    early = [{"kind": "launch", "world": 2}, {"kind": "save_failed", "why": "full"}, {"kind": "ended", "code": 1}]
    lines(run.events, *early, {"kind": "launch", "world": 3})
    found = collect_evidence(run)
    assert (found.world, found.ended, found.save_failed) == (3, None, "")
    lines(run.events, *early)
    found = collect_evidence(run)
    assert (found.ended, found.save_failed) == ({"kind": "ended", "code": 1}, "full")


def test_the_age_of_a_heartbeat_by_two_clocks(run: RunDir) -> None:
    write_json(run.heartbeat(0), {"rank": 0, "time": time.time() - 7200})
    assert collect_evidence(run).heartbeats[0].age < 60, "the host's clock is two hours late, but the file is new"
    os.utime(run.heartbeat(0), (1e9, 1e9))
    assert 7000 < collect_evidence(run).heartbeats[0].age < 8000


def test_what_the_watchdog_leaves(run: RunDir) -> None:
    lines(run.events, {"time": 1.0, "kind": "launch", "world": 2})
    sentence = "rank 1 on node1 has been loading data for 300 s at data.py:9 in read; rank 0 waits for it"
    reports = [{"rank": rank, "host": "node1", "activity": "data", "seconds": 300.0} for rank in range(2)]
    stall = {"time": 9.0, "sentence": sentence, "rank": 1, "host": "node1", "where": "data.py:9 in read"}
    write_json(run.stall_report, {**stall, "activity": "data", "step": 7, "reports": reports})
    for rank in range(2):
        report = ExitReport(sentence, 78, rank, "node1", echo=rank > 0, time=10.0, kind="hung")
        write_json(run.exit_report(rank), asdict(report))
        run.stack_dump(rank).write_text("Thread" if rank == 0 else "")
    found = diagnose(collect_evidence(run))
    assert (found.verdict, found.ranks, found.host, found.reason) == ("hung", [1], "node1", "data.py:9 in read")
    assert found.sentence == sentence
    assert found.next[0] == f"less {run.stack_dump(0)}", "that of rank 1 is empty"


LOG = """2026-01-02 03:04:05,678 INFO samestep.train.session.session: launch {'world': 2}
2026-01-02 03:04:06,678 ERROR samestep.failures: an old failure
2026-01-02 03:05:05,678 INFO samestep.train.session.session: launch {'world': 2}
2026-01-02 03:05:06,678 INFO samestep.train.session.session: save {'step': 2}
"""
FAILED = """2026-01-02 03:05:07,678 ERROR samestep.failures: row 7 is unreadable
Traceback (most recent call last):
  File "a.py", line 3, in <module>
RuntimeError: row 7 is unreadable
"""
ECHO = "2026-01-02 03:05:07,900 ERROR samestep.failures: rank 1 on node2 failed: RuntimeError: row 7 is unreadable\n"


def test_an_older_run_is_diagnosed_by_its_logs(run: RunDir) -> None:
    lines(run.events, {"time": 1.0, "kind": "launch", "world": 2})
    write_json(run.status, {"status": "running", "stage": "fit", "step": 0, "steps": 9})
    for rank, end in ((0, ECHO), (1, FAILED)):
        run.log(rank).parent.mkdir(exist_ok=True)
        run.log(rank).write_text(LOG + end)
    found = diagnose(collect_evidence(run))
    assert (found.verdict, found.ranks, found.source) == ("crashed", [1], "logs/rank_1.log")
    assert found.traceback.startswith("Traceback") and found.traceback.endswith("unreadable")
    run.log(1).write_text(LOG)
    assert diagnose(collect_evidence(run)).ranks == [1], "by the echo alone"
    run.log(0).write_text(LOG)
    assert diagnose(collect_evidence(run)).verdict == "killed", "the old failure is that of another launch"


def jobs(*numbers: str, output: str = "") -> list[dict[str, str]]:
    return [{"job": number, "scheduler": "slurm", "script": "s.sh", "output": output} for number in numbers]


def test_slurm_is_asked_for_the_last_job_that_has_begun(program: Callable[[str, str], None]) -> None:
    program("scontrol", 'case $4 in 8) echo "JobState=TIMEOUT Reason=TimeLimit";; *) echo "JobState=PENDING";; esac')
    found = last_job(jobs("7", "8", "9"))
    assert found is not None
    assert (found.number, found.state, found.source) == ("8", "TIMEOUT", "scontrol show job 8")
    waiting = last_job(jobs("9"))
    assert waiting is not None and waiting.is_queued
    assert last_job([]) is None


def test_what_the_controller_forgot(program: Callable[[str, str], None], tmp_path: Path) -> None:
    output = tmp_path / "8.out"
    output.write_text(
        "step 7\nslurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    )
    found = last_job(jobs("8", output=str(output)))
    assert found is not None
    assert (found.state, found.source) == ("TIMEOUT", str(output))
    program("sacct", "echo 'CANCELLED by 1000'")
    found = last_job(jobs("8", output=str(output)))
    assert found is not None
    assert (found.state, found.source) == ("CANCELLED", "sacct -j 8")


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been",
            "OUT_OF_MEMORY",
        ),
        ("srun: error: n1: task 1: Out Of Memory", "OUT_OF_MEMORY"),
        ("slurmstepd-n1: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***", "CANCELLED"),
        ("slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***", "CANCELLED"),
        ("slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***", "PREEMPTED"),
        ("the model said CANCELLED AT noon", ""),
    ],
)
def test_what_slurm_writes_into_the_output(tmp_path: Path, line: str, state: str) -> None:
    (tmp_path / "out").write_text(f"step 7\n{line}\n")
    assert state_in_output(str(tmp_path / "out")) == state


def test_the_kernel_is_asked_for_ranks_of_this_host(run: RunDir, program: Callable[[str, str], None]) -> None:
    program("dmesg", 'echo "[7.1] Out of memory: Killed process 71 (python) total-vm:1kB"')
    lines(run.events, {"time": 1.0, "kind": "launch", "world": 2})
    here = os.uname().nodename
    write_json(run.heartbeat(1), {"rank": 1, "host": here, "pid": 71, "time": 5.0, "memory": 10**9, "free": 10**10})
    os.utime(run.heartbeat(1), (5.0, 5.0))
    found = diagnose(collect_evidence(run))
    assert (found.verdict, found.ranks, found.source) == ("out_of_memory", [1], "dmesg")
    write_json(run.heartbeat(1), {"rank": 1, "host": "elsewhere", "pid": 71, "time": 5.0})
    assert collect_evidence(run).kernel_message == ""


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan")], ids=["400 digits", "infinite", "nan"])
def test_numbers_that_nobody_wrote_are_left_out_and_named(run: RunDir, number: float) -> None:
    write_json(run.stall_report, {"rank": 1, "time": number})
    found = collect_evidence(run)
    assert found.damage == {"watch/stall.json": "time cannot be used"}
    assert found.stall is not None and found.stall["rank"] == 1 and "time" not in found.stall
