"""Real ranks: messages, failures that become everyone's, timeouts that are really passed on."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samestep.core.errors import UserError
from samestep.launching import local
from samestep.world.failures import PeerFailed
from samestep.world.world import World

pytestmark = pytest.mark.timeout(900)


def talk() -> None:
    world = World.join(device="cpu")
    everyone = world.gather({"rank": world.rank, "text": "é" * world.rank})
    assert everyone == [{"rank": r, "text": "é" * r} for r in range(world.size)]
    assert world.share(f"from {world.rank}") == "from 0"
    assert world.share(f"from {world.rank}", source=world.size - 1) == f"from {world.size - 1}"
    assert world.share_through_store("key", ["x", 1] if world.is_main else None) == ["x", 1]
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_messages(size: int, tmp_path: Path) -> None:
    workers = local.start(talk, size, logs=tmp_path)
    assert workers.wait(40) == [0] * size, workers.output(0)


def fail_together(kind: str) -> int:
    world = World.join(device="cpu")
    try:
        with world.together("a step that fails on rank 1"):
            if world.rank == 1:
                raise UserError("the file is missing") if kind == "user" else RuntimeError("boom")
    except PeerFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except UserError as error:
        return error.exit_code
    except RuntimeError:
        return 1
    return 0


@pytest.mark.parametrize(
    ("kind", "code", "text"), [("user", 2, "the file is missing"), ("bug", 1, "RuntimeError: boom")]
)
def test_a_set_up_failure_on_one_rank_ends_all_with_its_message(
    kind: str, code: int, text: str, tmp_path: Path
) -> None:
    workers = local.start(fail_together, 3, kind, logs=tmp_path)
    assert workers.wait(30) == [code] * 3
    for rank in (0, 2):
        assert "rank 1 on" in workers.output(rank)
        assert text in workers.output(rank)


def unavailable_on_rank_1() -> int:
    world = World.rendezvous()
    try:
        world.connect(device="cpu", backend="ccl" if world.rank == 1 else "gloo")
    except (PeerFailed, UserError) as error:
        print(error)
        return error.exit_code
    return 0


def test_a_backend_missing_on_one_rank_never_leaves_single_runs(tmp_path: Path) -> None:
    workers = local.start(unavailable_on_rank_1, 2, logs=tmp_path)
    assert workers.wait(30) == [2, 2]
    assert "'ccl' is not available" in workers.output(0)


def wait_for_a_peer_that_never_comes() -> None:
    world = World.join(device="cpu", timeout=600)
    assert world.timeout == timedelta(seconds=2)
    if world.rank == 1:
        time.sleep(20)
        return
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        print(f"gave up after {time.monotonic() - began:.0f} s")


def test_nccl_timeout_is_the_process_groups_timeout(tmp_path: Path) -> None:
    workers = local.start(wait_for_a_peer_that_never_comes, 2, logs=tmp_path, env={"NCCL_TIMEOUT": "2"})
    end = time.monotonic() + 15
    while "gave up" not in workers.output(0) and time.monotonic() < end:
        time.sleep(0.1)
    workers.kill()
    assert "gave up after" in workers.output(0)


@pytest.mark.parametrize("text", ["soon", "-1", "0"])
def test_nonsense_timeouts_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TIMEOUT", text)
    with pytest.raises(UserError):
        World.join(device="cpu")


def try_without_store(folder: Path) -> None:
    """The process that holds the store, a launcher, may be killed: the ranks still learn how each of them ended."""
    world = World.join(device="cpu")
    (folder / f"joined_{world.rank}").touch()
    while not (folder / "gone").exists():
        time.sleep(0.01)
    with pytest.raises(RuntimeError):
        world.store.check(["anything"])
    assert world.try_together("work", lambda: world.rank) == (world.rank, None)

    def fails_once() -> None:
        if world.rank == 1:
            raise OSError("no such disk")

    _, failure = world.try_together("work", fails_once)
    assert str(failure) == "work failed on rank 1: OSError: no such disk"
    assert world.gather(world.rank) == list(range(world.size)), "all can go on, to save their state"
    world.leave()


def test_outcomes_do_not_need_the_store(tmp_path: Path) -> None:
    workers = local.start(try_without_store, 3, tmp_path, logs=tmp_path)
    end = time.monotonic() + 60
    while not all((tmp_path / f"joined_{rank}").exists() for rank in range(3)) and time.monotonic() < end:
        time.sleep(0.01)
    workers.store = None
    (tmp_path / "gone").touch()
    assert workers.wait(60) == [0, 0, 0], workers.output(0) + workers.output(1)


def fails_while_others_wait() -> int:
    world = World.join(device="cpu")
    began = time.monotonic()

    def work() -> None:
        if world.rank == 1:
            raise UserError("a bad row")
        dist.all_reduce(torch.zeros(1))

    with pytest.raises((UserError, RuntimeError)) as raised:
        world.try_together("work", work)
    if world.rank == 1:
        assert str(raised.value) == "a bad row" and time.monotonic() - began < 30
    return 7


def test_a_rank_that_fails_alone_does_not_wait_for_ever(tmp_path: Path) -> None:
    workers = local.start(fails_while_others_wait, 2, logs=tmp_path)
    assert workers.wait(60)[1] == 7, workers.output(1)
