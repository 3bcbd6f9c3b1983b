"""The parts that measure, each on its own: limits on time, clocks, sums that tell who is missing, the disk."""

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from samestep.core.errors import RunFailed, UserError
from samestep.doctor import rendezvous
from samestep.doctor.check import Answer, Check, run_check, trouble
from samestep.doctor.checks.collectives import TYPES, lost, part
from samestep.doctor.checks.disk import existing, probe
from samestep.doctor.checks.ports import can_open
from samestep.doctor.checks.versions import driver, fingerprint, marks
from samestep.doctor.clock import ClockServer, ask, midpoint
from samestep.doctor.rendezvous import CheckContext, StoreChannel, absence, answer_roll, find_line
from samestep.doctor.time_limit import Late, within
from samestep.world.rank_discovery import RankInfo

NODES = {0: "node1", 1: "node1", 2: "node2"}
GOOD = Answer({})


def exam(**more: object) -> Check:
    return Check("x", lambda seat: {}, lambda reports: [], "a broken cable; mend it", **more)  # type: ignore[arg-type]


def seat(rank: int = 0, size: int = 1, timeout: float = 10.0) -> CheckContext:
    return CheckContext(
        RankInfo("torchrun", rank, size, rank, size), StoreChannel(HashStore()), Path(), timeout=timeout, host="node1"
    )


def test_work_that_hangs_is_left_behind_at_its_line() -> None:
    gate = threading.Event()
    with pytest.raises(Late, match=r"test_machine_parts\.py:\d+ in <lambda>"):
        within(0.2, lambda: gate.wait(30))
    gate.set()
    assert within(10, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("say please"), "say please"),
        (RuntimeError("[/a/b/unbound_buffer.cc:81] Timed out\nstack"), "RuntimeError: Timed out"),
        (ValueError(""), "ValueError: "),
    ],
)
def test_an_error_is_one_line(error: Exception, told: str) -> None:
    def fail(seat: CheckContext) -> dict[str, object]:
        raise error

    assert run_check(Check("x", fail, lambda reports: [], ""), seat()).error == told


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({0: GOOD, 1: GOOD, 2: GOOD}, ""),
        (
            {0: Answer(error="echo"), 1: GOOD},
            "rank 2 on node2 did not answer within 9 s and died or hangs; likely cause: a",
        ),
        (
            {0: Answer(error="echo"), 1: Answer(where="a.py:3 in f"), 2: GOOD},
            "rank 1 on node1 at a.py:3 in f was still not",
        ),
        (
            {0: Answer(where="b.py:1 in g"), 1: Answer(where="b.py:1 in g"), 2: Answer(where="a.py:3 in f")},
            "rank 2 on node2 at a.py:3 in f, ranks 0, 1 on node1 at b.py:1 in g were still not done after 9 s",
        ),
        (
            {0: Answer(error="echo", seconds=5), 1: Answer(error="boom", seconds=1), 2: GOOD},
            "rank 1 on node1 failed with boom",
        ),
        (
            {0: Answer(error="no"), 1: Answer(error="no"), 2: Answer(error="no")},
            "ranks 0, 1 on node1 and rank 2 on node2",
        ),
    ],
)
def test_who_did_not_come_through(answers: dict[int, Answer], told: str) -> None:
    found = trouble(exam(), NODES, answers, 9)
    assert found.startswith(told) and bool(found) == bool(told)


def test_a_clock_that_is_ahead_is_seen() -> None:
    offset = ask("127.0.0.1", ClockServer(clock=lambda: time.time() - 100).port, 10)
    assert abs(offset.seconds - 100) <= offset.uncertainty + 0.01
    offset = midpoint(asked=10.0, theirs=5.5, answered=11.0)
    assert (offset.seconds, offset.uncertainty) == (5.0, 0.5)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 3, 70])
def test_a_sum_tells_whose_part_is_missing(name: str, size: int) -> None:
    parts = [part(rank, size, getattr(torch, name)) for rank in range(size)]
    total = torch.stack(parts).sum(0).to(getattr(torch, name))
    assert lost(total, size) == []
    if size > 1:
        assert lost(total - parts[1], size) == [1]
    assert lost(total * 2, size) == list(range(size))


def test_the_folder_of_runs_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path
    assert probe(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        probe(tmp_path / "file")


def test_a_port_in_use_is_seen() -> None:
    with socket.create_server(("", 0)) as taken:
        assert can_open(taken.getsockname()[1]) == "EADDRINUSE"
    assert can_open(0) == ""


def test_another_file_is_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("")
    before = marks(tmp_path)
    assert list(before) == ["deep/a.py"]
    (tmp_path / "deep" / "a.py").write_text("x = 2\n")
    assert fingerprint(before) != fingerprint(marks(tmp_path))


def test_the_driver_is_read_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver(path) == ""
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 12\n")
    assert driver(path) == "550.54.15"


def launched(rank: int, port: int) -> tuple[RankInfo, dict[str, str]]:
    return RankInfo("torchrun", rank, 2, rank, 2), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_without_rank_0_there_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RunFailed, match=rf"rank 1 on .* found no store of rank 0 at 127\.0\.0\.1:{port} within 0\.5 s"):
        find_line(*launched(1, port), 0.5)


def test_a_port_that_another_program_has_is_named() -> None:
    with (
        socket.create_server(("", 0)) as taken,
        pytest.raises(RunFailed, match="another program has it: set MASTER_PORT"),
    ):
        find_line(*launched(0, taken.getsockname()[1]), 5)


def test_a_rank_does_not_wait_for_ever_for_the_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "patience", lambda seat: 0.2)
    late = seat(1, 2, timeout=0.1)
    with pytest.raises(RunFailed, match=r"rank 1 on node1 heard nothing of rank 0 for 0\.2 s"):
        answer_roll(late, late.line)
    late.line.tell("roll", {"hosts": ["node1", None], "beacon": 1})
    with pytest.raises(RunFailed, match="too late: raise --timeout"):
        answer_roll(late, late.line)


def test_absent_ranks_are_numbered() -> None:
    here = seat(0, 4)
    here.hosts = ["node1", None, None, None]
    assert absence(here).startswith("ranks 1-3 did not come within 10 s, of 4 that torchrun announced")
    here.hosts = ["node1"] * 4
    assert absence(here) == ""


def test_one_rank_of_a_host_measures_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    here = seat(1, 3)
    here.hosts = ["node1", "node1", "node2"]
    assert not here.speaks_for_host
    assert here.address == "127.0.0.1"
