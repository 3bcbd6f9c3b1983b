"""Verdicts as a pure function of the evidence."""

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from samestep.core.exit_report import ExitReport
from samestep.launching.failure import Failure
from samestep.launching.restart_policy import Decision
from samestep.train.record.liveness import Heartbeat, Lock
from samestep.why.diagnose import diagnose
from samestep.why.records import VERDICTS, Evidence, SchedulerJob
from samestep.why.report import as_json, as_text

GB = 10**9
LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:7"
RUNNING = {"status": "running", "stage": "fit", "step": 0, "steps": 50}
BASE = Evidence(
    Path("runs/a"),
    now=1000.0,
    here="node1",
    status=RUNNING,
    launch={"kind": "launch", "time": 100.0, "world": 2},
    lock=Lock(False, "node1", 7),
    step=7,
    checkpoint=("fit", 6),
    last_change=("metrics.jsonl", 900.0),
    batch_size=4,
)


def report(text: str, kind: str = "crashed", rank: int = 1, time: float = 500.0, **more: Any) -> ExitReport:
    return ExitReport(text, more.pop("code", 1), rank, "node1", time=time, kind=kind, **more)


def ended(first: Failure | None = None, code: int | None = 1, text: str = "", **more: Any) -> dict[str, Any]:
    """As our launcher writes it."""
    return {"time": 600.0, **Decision(code, first, text).event(), "signal": "", **more}


def killed(number: int = signal.SIGKILL, rank: int = 1) -> Failure:
    return Failure(rank, -number, host="node1")


def beat(rank: int, age: float = 400.0, **more: Any) -> Heartbeat:
    return Heartbeat(rank, "node1", 70 + rank, age, "fit", 7, "step", **more)


def slurm(state: str) -> SchedulerJob:
    return SchedulerJob("17", "slurm", state, "scontrol show job 17", "runs/a/job/train.sh", "runs/a/job/17.out")


STALL = {
    "time": 700.0,
    "sentence": "rank 1 on node1 has been loading data for 300 s at data.py:9 in read; rank 0 waits for it",
    "rank": 1,
    "host": "node1",
    "where": "data.py:9 in read",
    "reports": [{"rank": 0, "activity": "step", "seconds": 300, "where": "x.py:1 in f"}, {"rank": 1, "state": ""}],
}
GONE = {**STALL, "reports": [{"rank": 1, "state": "gone"}]}
TIGHT = [beat(0, memory=2 * GB, free=60 * GB), replace(beat(1, memory=30 * GB, free=1 * GB), host="node2")]
ROOMY = [beat(0, memory=2 * GB, free=60 * GB), beat(1, memory=2 * GB, free=60 * GB)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "done": ("finished", {"status": {"status": "done"}}),
    "done, and a second launch of it failed": (
        "finished",
        {"status": {"status": "done"}, "exit_reports": [report("bad")]},
    ),
    "killed between two stages": ("killed", {"status": {**RUNNING, "status": "done"}}),
    "waiting": ("waiting", {"status": {"status": "waiting", "after": "dump"}}),
    "preempted": ("preempted", {"status": {**RUNNING, "status": "preempted", "reason": "max_time"}}),
    "stopped before the first step": ("preempted", {"ended": ended(None, 75, signal="SIGINT")}),
    "crashed": ("crashed", {"exit_reports": [report("ValueError: 3")]}),
    "crashed, and a peer stalled after it": ("crashed", {"exit_reports": [report("ValueError: 3")], "stall": STALL}),
    "crashed, and rank 0 still hangs": (
        "crashed",
        {"exit_reports": [report("ValueError: 3")], "lock": Lock(True, "node1", 7)},
    ),
    "only an echo is left": (
        "crashed",
        {"exit_reports": [report("rank 1 on b failed: KeyError: 3", rank=0, echo=True)]},
    ),
    "only the status is left": ("diverged", {"status": {"status": "failed", "kind": "diverged", "text": "nan"}}),
    "segmentation fault": ("crashed", {"ended": ended(killed(signal.SIGSEGV))}),
    "an exit code without an exit report": ("crashed", {"ended": ended(Failure(1, 3, host="node1"))}),
    "hung": (
        "hung",
        {"stall": STALL, "exit_reports": [report(STALL["sentence"], "hung", rank=0, time=701.0, code=78)]},
    ),
    "hung, reported by our launcher": (
        "hung",
        {"stall": STALL, "ended": ended(Failure(0, 78, report=report("hung", "hung", 0, code=78)))},
    ),
    "hung, and the stuck rank still holds the lock": ("hung", {"stall": STALL, "lock": Lock(True, "node1", 7)}),
    "hung, and the stall was not written": ("hung", {"exit_reports": [report("rank 1 hangs", "hung", code=78)]}),
    "a rank was gone when the watchdog looked": ("killed", {"stall": GONE}),
    "an echo of the watchdog is not a hang": (
        "crashed",
        {"exit_reports": [report("rank 1 on b failed: KeyError: 3", "hung", rank=0, echo=True)]},
    ),
    "out of memory": ("out_of_memory", {"exit_reports": [report("out of memory", "memory", code=77)]}),
    "a peer's lack of memory": (
        "out_of_memory",
        {"exit_reports": [report("rank 1 on b failed: OutOfMemory: no room", rank=0, code=77, echo=True)]},
    ),
    "killed for memory, by the heartbeats": ("out_of_memory", {"ended": ended(killed()), "heartbeats": TIGHT}),
    "killed for memory, by the kernel": (
        "out_of_memory",
        {
            "ended": ended(killed()),
            "heartbeats": ROOMY,
            "kernel_message": "Out of memory: Killed process 71 (python) total-vm",
        },
    ),
    "killed for memory, by the scheduler": ("out_of_memory", {"job": slurm("OUT_OF_MEMORY")}),
    "SIGKILL while there was room": ("killed", {"ended": ended(killed()), "heartbeats": ROOMY}),
    "SIGTERM while memory was short": ("killed", {"ended": ended(killed(signal.SIGTERM)), "heartbeats": TIGHT}),
    "the other host was short of memory": ("killed", {"ended": ended(killed(rank=0)), "heartbeats": TIGHT}),
    "no rank left an exit report": ("killed", {}),
    "a peer lost its connection": ("killed", {"exit_reports": [report(LOST, rank=0)]}),
    "a peer lost its connection, and another rank reports that": (
        "killed",
        {
            "launch": {"time": 100.0, "world": 3},
            "exit_reports": [
                report(LOST, rank=0),
                report(f"rank 0 on b failed: {LOST}", rank=2, time=400.0, echo=True),
            ],
        },
    ),
    "all lost their connections": ("crashed", {"exit_reports": [report(LOST, rank=0), report(LOST, rank=1)]}),
    "Ctrl-C twice under our launcher": ("killed", {"ended": ended(None, 130, "interrupted twice")}),
    "Ctrl-C twice": ("killed", {"exit_reports": [report("interrupted twice", "interrupted", code=130)]}),
    "a lost node": ("killed", {"ended": ended(None, 1, "node2 left without a message")}),
    "cancelled": ("killed", {"job": slurm("CANCELLED")}),
    "time limit": ("killed", {"job": slurm("TIMEOUT")}),
    "an exit report counts more than the scheduler's state": (
        "crashed",
        {"job": slurm("FAILED"), "exit_reports": [report("ValueError")]},
    ),
    "diverged": ("diverged", {"exit_reports": [report("not finite", "diverged")]}),
    "disk": ("disk", {"exit_reports": [report("writing failed", "disk")]}),
    "a full disk in an exception": ("disk", {"exit_reports": [report("OSError: [Errno 28] No space left on device")]}),
    "a full disk in a save": ("disk", {"save_failed": "OSError: [Errno 28] No space left on device"}),
    "a full disk, still": ("disk", {"disk_free": 4096}),
    "killed while the disk was full": ("killed", {"disk_free": 4096, "ended": ended(killed(signal.SIGTERM))}),
    "user error": ("user_error", {"exit_reports": [report("write it otherwise", "user", code=2)]}),
    "an expected failure": ("failed", {"exit_reports": [report("the store is gone", "failed")]}),
    "running": ("running", {"lock": Lock(True, "node1", 7)}),
    "running on another host, whose lock is seen": ("running", {"lock": Lock(True, "node2", 7)}),
    "running on another host, whose lock is not seen": (
        "running",
        {"lock": Lock(False, "node2", 7), "heartbeats": [beat(0, age=5.0)]},
    ),
    "running on another host, no lock at all": ("running", {"lock": Lock(None), "heartbeats": [beat(0, age=5.0)]}),
    "running, by the scheduler": ("running", {"lock": Lock(None, "node2", 7), "job": slurm("RUNNING")}),
    "silent for long on another host": (
        "killed",
        {"lock": Lock(False, "node2", 7), "heartbeats": [beat(0, age=500.0)]},
    ),
    "gone a moment ago on this host": ("killed", {"heartbeats": [beat(0, age=2.0), beat(1, age=2.0)]}),
    "being restarted": ("running", {"ended": ended(killed(), None), "now": 610.0}),
    "never restarted": ("killed", {"ended": ended(killed(), None), "now": 5000.0}),
    "queued": ("not_started", {"status": {}, "launch": None, "job": slurm("PENDING")}),
    "opened, never begun": ("not_started", {"status": {}, "launch": None}),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict(case: str) -> None:
    expected, changes = CASES[case]
    evidence = replace(BASE, **changes)
    found = diagnose(evidence)
    assert found.verdict == expected, found
    assert found.sentence and found.next
    data = as_json(evidence, found)
    assert data["verdict"] in VERDICTS and data["evidence"] and data["next"]
    text = as_text(evidence, found)
    assert text.startswith(f"runs/a: {expected.replace('_', ' ')}\n") and "\nevidence\n" in text and "\nnext\n" in text


def of(case: str) -> Any:
    return diagnose(replace(BASE, **CASES[case][1]))


def test_every_verdict_is_reached() -> None:
    assert {expected for expected, _ in CASES.values()} == set(VERDICTS)


def test_the_first_failing_rank_is_named() -> None:
    reports = [
        report("late", rank=0, time=502.0),
        report("early", rank=3, time=501.0),
        report(LOST, rank=2, time=400.0),
    ]
    found = diagnose(replace(BASE, exit_reports=reports))
    assert (found.ranks, found.source) == ([3], "watch/rank_3_exit.json")
    assert found.sentence == "rank 3 on node1 failed at step 7 of 50 of stage fit: early"
    together = diagnose(replace(BASE, exit_reports=[report("same", rank=0), report("same", rank=1)]))
    assert together.sentence.startswith("every rank failed at step 7")
    echo = of("only an echo is left")
    assert echo.sentence == "rank 1 on b failed at step 7 of 50 of stage fit: KeyError: 3"


def test_a_hang_has_its_culprit_and_its_place() -> None:
    evidence = replace(BASE, stall=STALL, files=frozenset({"watch/rank_1_stacks.txt"}))
    found = diagnose(evidence)
    assert (found.sentence, found.ranks, found.reason) == (STALL["sentence"], [1], "data.py:9 in read")
    assert found.next[0] == "less runs/a/watch/rank_1_stacks.txt"
    assert ("watch/stall.json", "rank 0: step for 300 s, x.py:1 in f") in {
        (line["file"], line["text"]) for line in as_json(evidence, found)["evidence"]
    }
    nobody = diagnose(replace(BASE, stall={**STALL, "rank": None, "host": None, "where": None}))
    assert (nobody.verdict, nobody.ranks) == ("hung", [])


def test_out_of_memory_says_how_much_and_what_to_reduce() -> None:
    found = of("killed for memory, by the heartbeats")
    assert "rank 1 on node2 was probably killed by the kernel for lack of memory at step 7" in found.sentence
    assert "it held 30 GB, and 1 GB were free there; reduce batch_size (it is 4)" in found.sentence
    assert found.next == ["samestep train --resume runs/a --batch_size=2"]
    assert "rank 1 on node1 was killed by the kernel" in of("killed for memory, by the kernel").sentence
    no_room = report("no room", "memory", code=77, retry_batch_size=1)
    assert diagnose(replace(BASE, exit_reports=[no_room])).next == [
        "samestep train --resume runs/a --nproc 2 --batch_size=1"
    ]


@pytest.mark.parametrize(
    ("state", "says"),
    [("CANCELLED", "was cancelled"), ("TIMEOUT", "reached its time limit"), ("NODE_FAIL", "lost a node")],
)
def test_the_scheduler_is_believed(state: str, says: str) -> None:
    found = diagnose(replace(BASE, job=slurm(state)))
    assert (found.verdict, found.reason) == ("killed", f"slurm {state}")
    assert f"job 17 {says}" in found.sentence
    assert found.next == ["sbatch runs/a/job/train.sh"]


def test_a_requeued_job_continues_by_itself() -> None:
    status = {**RUNNING, "status": "preempted", "reason": "SIGUSR1"}
    found = diagnose(replace(BASE, status=status, job=slurm("PENDING")))
    assert found.next == ["squeue --job 17"]
    assert "continues from there by itself" in found.sentence and "SIGUSR1" in found.sentence
    cancelled = diagnose(replace(BASE, status=status, job=slurm("CANCELLED")))
    assert cancelled.next == ["sbatch runs/a/job/train.sh"]
    assert "job 17 was cancelled" in cancelled.sentence


def test_a_slow_rank_of_a_live_run_is_mentioned() -> None:
    beats = [beat(0, age=1.0), beat(1, age=1.0, seconds=200.0, limit=300.0)]
    found = diagnose(replace(BASE, lock=Lock(True, "node1", 7), heartbeats=beats))
    assert found.verdict == "running"
    assert "rank 1 on node1 has made no progress for 200 s (step), and is ended after 300 s" in found.sentence


def test_the_launchers_event_has_all_that_is_needed() -> None:
    failed = report("ValueError: 3", traceback="Traceback\nValueError: 3")
    event = Decision(None, Failure(1, 1, report=failed), "restarting").event()
    assert (event["kind"], event["rank"], event["code"], event["restart"]) == ("ended", 1, 1, True)
    assert event["word"] == asdict(failed)
    found = diagnose(replace(BASE, ended={"time": 600.0, **event, "restart": False}))
    assert (found.verdict, found.traceback) == ("crashed", failed.traceback)


def test_exit_reports_of_an_older_run_come_from_its_logs() -> None:
    evidence = replace(BASE, exit_reports=[report("KeyError: 3", traceback="Traceback")], from_logs=True)
    assert diagnose(evidence).source == "logs/rank_1.log"
