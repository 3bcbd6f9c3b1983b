"""What a rank makes of its lateness, look by look: with a store that answers, and with one that does not."""

import os
from pathlib import Path
from typing import Any

import pytest

from samestep.core.rundir import RunDir
from samestep.world.rank_discovery import RankInfo
from samestep.world.watchdog import stack_dump, watchdog
from samestep.world.watchdog.activity import Watch
from samestep.world.watchdog.heartbeat import OUTDATED, put_report
from samestep.world.watchdog.watchdog import AT_ONCE, TURN, UNHEARD, Suspicion
from samestep.world.world import World


class Brought:
    """A post whose news are given."""

    def __init__(self) -> None:
        self.wanted, self.silence = False, 0.0
        self.others: list[list[dict[str, Any]]] = []


def world(rank: int, size: int = 2) -> World:
    return World(RankInfo("torchrun", rank, size, rank, size), World.single().device)


def beat(rank: int, look: int, **more: Any) -> dict[str, Any]:
    watch = Watch()
    report = stack_dump.report(watch, watch.lanes[0], 20.0, 10.0, rank)
    return {**report, "recent": [], "look": look, "collectives": {"default": 7}, "waits": True, **more}


def made(folder: Path, rank: int = 0, size: int = 2) -> tuple[Suspicion, Any]:
    post: Any = Brought()
    return Suspicion(world(rank, size), RunDir(folder), post), post


def test_it_listens_first_and_then_judges_by_who_was_heard(tmp_path: Path) -> None:
    late, post = made(tmp_path)
    mine = beat(0, 5)
    assert late.judge(mine, 0.0) is None and post.wanted, "it asks for the others"
    post.others = [[mine], [beat(1, 5, collectives={"default": 6})]]
    assert late.judge(mine, 1.0) is None, "it listens from now on"
    post.others = [[mine], [beat(1, 9, collectives={"default": 6})]]
    assert late.judge(mine, 1.0 + UNHEARD / 2) is None
    stall = late.judge(mine, 1.1 + UNHEARD)
    assert stall is not None and stall.culprit is not None
    assert (stall.culprit["rank"], stall.culprit["alive"]) == (1, True)


def test_one_that_was_not_heard_is_silent(tmp_path: Path) -> None:
    late, post = made(tmp_path)
    late.judge(beat(0, 5), 0.0)
    post.others = [[beat(0, 5)], [beat(1, 5, host="elsewhere")]]
    late.judge(beat(0, 6), 1.0)
    stall = late.judge(beat(0, 11), 1.1 + UNHEARD)
    assert stall is not None and "rank 1 on elsewhere gives no sign of life" in stall.sentence


def test_one_that_left_its_stacks_after_its_last_sign_of_life_holds_the_interpreter(tmp_path: Path) -> None:
    late, post = made(tmp_path)
    silent = beat(1, 5, thread=0xABC)
    put_report(RunDir(tmp_path).heartbeat(1), silent)
    stacks = RunDir(tmp_path).stack_dump(1)
    stacks.write_text('Timeout!\nThread 0x0abc (most recent call first):\n  File "/mine/busy.py", line 3 in hold\n')
    later = RunDir(tmp_path).heartbeat(1).stat().st_mtime + 9
    os.utime(stacks, (later, later))
    late.judge(beat(0, 5), 0.0)
    post.others = [[beat(0, 5)], [silent]]
    late.judge(beat(0, 6), 1.0)
    stall = late.judge(beat(0, 11), 1.1 + UNHEARD)
    assert stall is not None
    assert stall.sentence.startswith(f"rank 1 on {silent['host']} holds the interpreter at /mine/busy.py:3 in hold")


def test_without_the_store_files_tell_who_is_silent(tmp_path: Path) -> None:
    late, post = made(tmp_path, rank=1)
    post.silence = UNHEARD + 1
    for rank in (0, 1):
        put_report(RunDir(tmp_path).heartbeat(rank), beat(rank, 5, host="elsewhere"))
    assert late.judge(beat(1, 9), 0.0) is None, "the file of rank 0 still looks fresh"
    old = RunDir(tmp_path).heartbeat(1).stat().st_mtime - OUTDATED - 1
    os.utime(RunDir(tmp_path).heartbeat(0), (old, old))
    stall = late.judge(beat(1, 9), 1.0)
    assert stall is not None and "rank 0 on elsewhere gives no sign of life" in stall.sentence


def test_without_store_and_shared_disk_it_says_what_it_can(tmp_path: Path) -> None:
    late, post = made(tmp_path, rank=1)
    post.silence = OUTDATED + UNHEARD + 1
    stall = late.judge(beat(1, 9), 0.0)
    assert stall is not None and stall.culprit is None
    assert "the store in which ranks meet has not answered for 16 s" in stall.sentence
    assert stall.to_json()["speaker"] == 1


@pytest.mark.parametrize("rank", [0, AT_ONCE - 1, AT_ONCE, 10_000])
def test_not_all_of_many_ranks_ask_at_once(tmp_path: Path, rank: int) -> None:
    late, post = made(tmp_path, rank, size=20_000)
    wait = min(watchdog.LAST_TURN, TURN * (rank // AT_ONCE))
    late.judge(beat(rank, 5, seconds=10.0 + wait - 0.1), 0.0)
    assert not post.wanted
    late.judge(beat(rank, 5, seconds=10.0 + wait + 0.1), 0.0)
    assert post.wanted
