"""Whether a late rank finds a stall, check by check: with a store that answers, and with one that does not.

And what a run says of a thread that makes no progress for an unusual time.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.core.logs import start_logging
from samestep.core.rundir import RunDir
from samestep.world import activity
from samestep.world.activity import ActivityTracker
from samestep.world.rank_discovery import RankInfo
from samestep.world.watchdog import stack_dump, watchdog
from samestep.world.watchdog.heartbeat import FILE_MAX_AGE, write_heartbeat
from samestep.world.watchdog.limits import WatchdogConfig
from samestep.world.watchdog.watchdog import DELAY, HEARTBEAT_TIMEOUT, RANKS_AT_ONCE, CpuUse, StallDetector, Watchdog
from samestep.world.world import World


class FakeHeartbeats:
    """An exchange whose results are given."""

    def __init__(self) -> None:
        self.fetch_all, self.store_silence = False, 0.0
        self.by_rank: list[list[dict[str, Any]]] = []


def world(rank: int, size: int = 2) -> World:
    return World(RankInfo("torchrun", rank, size, rank, size), World.single().device)


def heartbeat(rank: int, tick: int, **more: Any) -> dict[str, Any]:
    tracker = ActivityTracker()
    report = stack_dump.thread_report(tracker, tracker.threads[0], 20.0, 10.0, None, rank)
    return {
        **report,
        "setting": "watch.step",
        "recent": [],
        "tick": tick,
        "collectives": {"default": 7},
        "waits": True,
        **more,
    }


def make_detector(folder: Path, rank: int = 0, size: int = 2) -> tuple[StallDetector, Any]:
    heartbeats: Any = FakeHeartbeats()
    return StallDetector(world(rank, size), RunDir(folder), heartbeats), heartbeats


def test_it_reads_heartbeats_first_and_decides_by_who_sent_another(tmp_path: Path) -> None:
    detector, heartbeats = make_detector(tmp_path)
    own = heartbeat(0, 5)
    assert detector.check(own, 0.0) is None and heartbeats.fetch_all, "it reads those of the others"
    heartbeats.by_rank = [[own], [heartbeat(1, 5, collectives={"default": 6})]]
    assert detector.check(own, 1.0) is None, "it reads them from now on"
    heartbeats.by_rank = [[own], [heartbeat(1, 9, collectives={"default": 6})]]
    assert detector.check(own, 1.0 + HEARTBEAT_TIMEOUT / 2) is None
    stall = detector.check(own, 1.1 + HEARTBEAT_TIMEOUT)
    assert stall is not None and stall.culprit is not None
    assert (stall.culprit["rank"], stall.culprit["alive"]) == (1, True)


def test_one_without_a_new_heartbeat_is_silent(tmp_path: Path) -> None:
    detector, heartbeats = make_detector(tmp_path)
    detector.check(heartbeat(0, 5), 0.0)
    heartbeats.by_rank = [[heartbeat(0, 5)], [heartbeat(1, 5, host="elsewhere")]]
    detector.check(heartbeat(0, 6), 1.0)
    stall = detector.check(heartbeat(0, 11), 1.1 + HEARTBEAT_TIMEOUT)
    assert stall is not None and "rank 1 on elsewhere sends no heartbeat" in stall.sentence


def test_one_that_wrote_its_stacks_after_its_last_heartbeat_holds_the_interpreter(tmp_path: Path) -> None:
    detector, heartbeats = make_detector(tmp_path)
    silent = heartbeat(1, 5, thread=0xABC)
    write_heartbeat(RunDir(tmp_path).heartbeat(1), silent)
    stacks = RunDir(tmp_path).stack_dump(1)
    stacks.write_text('Timeout!\nThread 0x0abc (most recent call first):\n  File "/mine/busy.py", line 3 in hold\n')
    later = RunDir(tmp_path).heartbeat(1).stat().st_mtime + 9
    os.utime(stacks, (later, later))
    detector.check(heartbeat(0, 5), 0.0)
    heartbeats.by_rank = [[heartbeat(0, 5)], [silent]]
    detector.check(heartbeat(0, 6), 1.0)
    stall = detector.check(heartbeat(0, 11), 1.1 + HEARTBEAT_TIMEOUT)
    assert stall is not None
    assert stall.sentence.startswith(f"rank 1 on {silent['host']} holds the interpreter at /mine/busy.py:3 in hold")


def test_what_is_unusual_is_found_before_the_limit(tmp_path: Path) -> None:
    """By what is usual for the rank that the others wait for; where nothing is usual, as in a save, it has time."""
    slow = {"collectives": {"default": 6}, "limit": 300.0, "waits": False}
    for unusual, found in ((15.0, True), (None, False), (30.0, False)):
        detector, heartbeats = make_detector(tmp_path)
        own = heartbeat(0, 5, limit=300.0, unusual=15.0)
        assert detector.check(own, 0.0) is None and not heartbeats.fetch_all, "its limit is far away"
        detector.check(own, 0.0, early=True)
        heartbeats.by_rank = [[own], [heartbeat(1, 5, **slow, unusual=unusual)]]
        detector.check(own, 1.0, early=True)
        heartbeats.by_rank = [[own], [heartbeat(1, 11, **slow, unusual=unusual)]]
        stall = detector.check(own, 1.1 + HEARTBEAT_TIMEOUT, early=True)
        assert (stall is not None) is found
        assert stall is None or "rank 1" in stall.sentence


def test_without_the_store_files_show_who_is_silent(tmp_path: Path) -> None:
    detector, heartbeats = make_detector(tmp_path, rank=1)
    heartbeats.store_silence = HEARTBEAT_TIMEOUT + 1
    for rank in (0, 1):
        write_heartbeat(RunDir(tmp_path).heartbeat(rank), heartbeat(rank, 5, host="elsewhere"))
    assert detector.check(heartbeat(1, 9), 0.0) is None, "the file of rank 0 still looks fresh"
    old = RunDir(tmp_path).heartbeat(1).stat().st_mtime - FILE_MAX_AGE - 1
    os.utime(RunDir(tmp_path).heartbeat(0), (old, old))
    stall = detector.check(heartbeat(1, 9), 1.0)
    assert stall is not None and "rank 0 on elsewhere sends no heartbeat" in stall.sentence


def test_without_store_and_shared_disk_it_reports_what_it_knows(tmp_path: Path) -> None:
    detector, heartbeats = make_detector(tmp_path, rank=1)
    heartbeats.store_silence = FILE_MAX_AGE + HEARTBEAT_TIMEOUT + 1
    stall = detector.check(heartbeat(1, 9), 0.0)
    assert stall is not None and stall.culprit is None
    assert "the rendezvous store has not answered for 16 s" in stall.sentence
    assert stall.to_json()["speaker"] == 1


@pytest.mark.parametrize("rank", [0, RANKS_AT_ONCE - 1, RANKS_AT_ONCE, 10_000])
def test_not_all_of_many_ranks_read_at_once(tmp_path: Path, rank: int) -> None:
    detector, heartbeats = make_detector(tmp_path, rank, size=20_000)
    wait = min(watchdog.MAX_DELAY, DELAY * (rank // RANKS_AT_ONCE))
    detector.check(heartbeat(rank, 5, seconds=10.0 + wait - 0.1), 0.0)
    assert not heartbeats.fetch_all
    detector.check(heartbeat(rank, 5, seconds=10.0 + wait + 0.1), 0.0)
    assert heartbeats.fetch_all


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(activity.time, "monotonic", lambda: self.now)


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Watchdog, ActivityTracker, Clock]:
    """The watchdog of a lone process that has made some steps; nothing runs in a thread."""
    clock, alone = Clock(monkeypatch), World.single()
    found = Watchdog(alone, RunDir(tmp_path), WatchdogConfig())
    tracker = alone.activity
    tracker.threads[0].activity = "step"
    for _ in range(20):
        clock.now += 0.1
        tracker.made_progress()
    return found, tracker, clock


def pass_seconds(dog: Watchdog, seconds: int) -> None:
    for _ in range(seconds):
        dog._check(dog._reports(passed=1.0), 0.0)


def test_an_unusual_gap_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start_logging(None, show="warning")  # as in a run, whose messages are not to be printed twice
    dog, tracker, _ = watched(tmp_path, monkeypatch)
    pass_seconds(dog, 12)
    assert capfd.readouterr().err == ""
    pass_seconds(dog, 200)
    said = capfd.readouterr().err
    assert said.count("no progress for") == 1
    assert "rank 0 on" in said and "the run goes on, and ends if this lasts for 300 s (watch.step)" in said
    tracker.made_progress()
    pass_seconds(dog, 30)
    assert capfd.readouterr().err == "", "it is more patient from then on"
    pass_seconds(dog, 30)
    assert capfd.readouterr().err.count("no progress for") == 1


@pytest.mark.parametrize(("computes", "then"), [(30, 0.0), (110, 0.5)])
def test_a_lone_process_that_computes_is_reported_at_its_limit_and_ended_when_it_stops_or_much_later(
    computes: int, then: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a machine that others use too: it gets half a core. Its limit is 6 s, so 60 s of CPU time are too many."""
    ended: list[str] = []
    used = 0.0
    monkeypatch.setattr(Watchdog, "_end", lambda self, stall: ended.append(stall["sentence"]))
    monkeypatch.setattr(watchdog, "CpuUse", partial(CpuUse, clock=lambda activity: used))
    dog, _, _ = watched(tmp_path, monkeypatch)
    dog._config = WatchdogConfig(step=6.0)
    for _ in range(computes):
        used += 0.5
        pass_seconds(dog, 1)
    said = capfd.readouterr().err
    assert said.count("it still uses the CPU, so it may only be slow, and the run goes on") == 1, "once"
    assert "watch.step sets both" in said and not ended
    for _ in range(15):
        used += then
        pass_seconds(dog, 1)
    assert ended and "rank 0 on" in ended[0] and ended[0].endswith("if it is only slow, raise watch.step")


@pytest.mark.parametrize("what", ["start", "compile", "save", "finish"])
def test_what_may_take_as_long_as_it_will_is_not_reported(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dog, tracker, clock = watched(tmp_path, monkeypatch)
    for _ in range(20):
        clock.now += 0.1
        with tracker.doing(what):
            clock.now += 0.1
    with tracker.doing(what):
        pass_seconds(dog, 200)
    assert capfd.readouterr().err == ""


def test_a_recompilation_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dog, _, _ = watched(tmp_path, monkeypatch)
    seen: list[bool] = []

    def slow_backend(graph: Any, inputs: Any) -> Any:
        seen.append(stack_dump.is_compiling())
        pass_seconds(dog, 200)
        return graph.forward

    torch.compile(lambda x: x + 1, backend=slow_backend)(torch.ones(2))
    assert seen == [True] and not stack_dump.is_compiling()
    assert capfd.readouterr().err == ""


def test_a_step_with_a_long_part_is_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rollout of a minute among many short micro-batches."""
    dog, tracker, clock = watched(tmp_path, monkeypatch)
    clock.now += 60.0
    tracker.made_progress()
    pass_seconds(dog, 150)
    assert capfd.readouterr().err == ""


def test_a_stage_begins_without_habits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dog, tracker, _ = watched(tmp_path, monkeypatch)
    with tracker.stepping("next", 0, compiles=False):
        pass_seconds(dog, 200)
    assert capfd.readouterr().err == ""
