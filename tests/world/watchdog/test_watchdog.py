"""Whether a late rank finds a stall, check by check: with a store that answers, and with one that does not."""

import os
from pathlib import Path
from typing import Any

import pytest

from samestep.core.rundir import RunDir
from samestep.world.rank_discovery import RankInfo
from samestep.world.watchdog import stack_dump, watchdog
from samestep.world.watchdog.activity import ActivityTracker
from samestep.world.watchdog.heartbeat import FILE_MAX_AGE, write_heartbeat
from samestep.world.watchdog.watchdog import DELAY, HEARTBEAT_TIMEOUT, RANKS_AT_ONCE, StallDetector
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
    report = stack_dump.thread_report(tracker, tracker.threads[0], 20.0, 10.0, rank)
    return {**report, "recent": [], "look": tick, "collectives": {"default": 7}, "waits": True, **more}


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
