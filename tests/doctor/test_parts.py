"""The parts that measure, each on its own: time limits, clocks, sums that show which rank is missing, the disk."""

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from samestep.core.disk_space import existing_folder
from samestep.core.errors import RunFailed, UserError
from samestep.core.handshake import NotTrusted
from samestep.doctor import rendezvous
from samestep.doctor.check import Check, RankOutcome, failure_sentence, run_check
from samestep.doctor.checks.collectives import TYPES, contribution, wrong_ranks
from samestep.doctor.checks.disk import probe
from samestep.doctor.checks.network import port_error
from samestep.doctor.checks.versions import driver, file_hashes, fingerprint
from samestep.doctor.clock import ClockServer, measure_offset, offset_from
from samestep.doctor.rendezvous import (
    CheckContext,
    StoreChannel,
    TimeLimitExceeded,
    announce_arrival,
    missing_ranks,
    open_channel,
    run_within,
)
from samestep.world.rank_discovery import RankInfo

NODES = {0: "node1", 1: "node1", 2: "node2"}
GOOD = RankOutcome({})


def check(**more: object) -> Check:
    return Check("x", lambda context: {}, lambda reports: [], "a broken cable; fix it", **more)  # type: ignore[arg-type]


def make_context(rank: int = 0, size: int = 1, timeout: float = 10.0) -> CheckContext:
    return CheckContext(
        RankInfo("torchrun", rank, size, rank, size), StoreChannel(HashStore()), Path(), timeout=timeout, host="node1"
    )


def test_work_that_hangs_is_left_behind_at_its_line() -> None:
    gate = threading.Event()
    with pytest.raises(TimeLimitExceeded, match=r"test_parts\.py:\d+ in <lambda>"):
        run_within(0.2, lambda: gate.wait(30))
    gate.set()
    assert run_within(10, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run_within(10, lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("say please"), "say please"),
        (RuntimeError("[/a/b/unbound_buffer.cc:81] Timed out\nstack"), "RuntimeError: Timed out"),
        (ValueError(""), "ValueError: "),
    ],
)
def test_an_error_is_one_line(error: Exception, text: str) -> None:
    def fail(context: CheckContext) -> dict[str, object]:
        raise error

    assert run_check(Check("x", fail, lambda reports: [], ""), make_context()).error == text


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ({0: GOOD, 1: GOOD, 2: GOOD}, ""),
        (
            {0: RankOutcome(error="echo"), 1: GOOD},
            "rank 2 on node2 did not answer within 9 s and died or hangs; likely cause: a",
        ),
        (
            {0: RankOutcome(error="echo"), 1: RankOutcome(where="a.py:3 in f"), 2: GOOD},
            "rank 1 on node1 at a.py:3 in f was still not",
        ),
        (
            {
                0: RankOutcome(where="b.py:1 in g"),
                1: RankOutcome(where="b.py:1 in g"),
                2: RankOutcome(where="a.py:3 in f"),
            },
            "rank 2 on node2 at a.py:3 in f, ranks 0, 1 on node1 at b.py:1 in g were still not done after 9 s",
        ),
        (
            {0: RankOutcome(error="echo", seconds=5), 1: RankOutcome(error="boom", seconds=1), 2: GOOD},
            "rank 1 on node1 failed with boom",
        ),
        (
            {0: RankOutcome(error="no"), 1: RankOutcome(error="no"), 2: RankOutcome(error="no")},
            "ranks 0, 1 on node1 and rank 2 on node2",
        ),
    ],
)
def test_ranks_that_did_not_complete_a_check_are_named(outcomes: dict[int, RankOutcome], text: str) -> None:
    found = failure_sentence(check(), NODES, outcomes, 9)
    assert found.startswith(text) and bool(found) == bool(text)


def test_a_clock_that_is_ahead_is_seen() -> None:
    server = ClockServer(b"key", only_here=True, clock=lambda: time.time() - 100)
    offset = measure_offset("127.0.0.1", server.port, b"key", 10)
    assert abs(offset.seconds - 100) <= offset.uncertainty + 0.01
    offset = offset_from(sent=10.0, theirs=5.5, received=11.0)
    assert (offset.seconds, offset.uncertainty) == (5.0, 0.5)
    with pytest.raises(NotTrusted):
        measure_offset("127.0.0.1", server.port, b"another key", 10)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 3, 70])
def test_a_sum_shows_whose_part_is_missing(name: str, size: int) -> None:
    parts = [contribution(rank, size, getattr(torch, name)) for rank in range(size)]
    total = torch.stack(parts).sum(0).to(getattr(torch, name))
    assert wrong_ranks(total, size) == []
    if size > 1:
        assert wrong_ranks(total - parts[1], size) == [1]
    assert wrong_ranks(total * 2, size) == list(range(size))


def test_the_folder_of_runs_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert existing_folder(tmp_path / "a" / "b") == tmp_path
    assert probe(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        probe(tmp_path / "file")


def test_a_port_in_use_is_seen() -> None:
    with socket.create_server(("", 0)) as taken:
        assert port_error(taken.getsockname()[1]) == "EADDRINUSE"
    assert port_error(0) == ""


def test_another_file_is_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("")
    before = file_hashes(tmp_path)
    assert list(before) == ["deep/a.py"]
    (tmp_path / "deep" / "a.py").write_text("x = 2\n")
    assert fingerprint(before) != fingerprint(file_hashes(tmp_path))


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
        open_channel(*launched(1, port), 0.5)


def test_a_port_that_another_program_has_is_named() -> None:
    with (
        socket.create_server(("", 0)) as taken,
        pytest.raises(RunFailed, match="another program has it: set MASTER_PORT"),
    ):
        open_channel(*launched(0, taken.getsockname()[1]), 5)


def test_a_rank_does_not_wait_for_ever_for_the_list_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "rank_0_timeout", lambda context: 0.2)
    late = make_context(1, 2, timeout=0.1)
    with pytest.raises(RunFailed, match=r"rank 1 on node1 received nothing from rank 0 for 0\.2 s"):
        announce_arrival(late, late.channel)
    late.channel.put("arrivals", {"hosts": ["node1", None], "clock_port": 1})
    with pytest.raises(RunFailed, match="too late: raise --timeout"):
        announce_arrival(late, late.channel)


def test_absent_ranks_are_numbered() -> None:
    here = make_context(0, 4)
    here.hosts = ["node1", None, None, None]
    assert missing_ranks(here).startswith("ranks 1-3 did not come within 10 s, of 4 that torchrun announced")
    here.hosts = ["node1"] * 4
    assert missing_ranks(here) == ""


def test_one_rank_of_a_host_measures_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    here = make_context(1, 3)
    here.hosts = ["node1", "node1", "node2"]
    assert not here.is_first_on_host
    assert here.address == "127.0.0.1"
