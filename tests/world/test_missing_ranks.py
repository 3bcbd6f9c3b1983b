"""A rank that never starts is named, with its host, while the others wait for it and when they give up."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch

from samestep.core.errors import RunFailed
from samestep.core.store_server import serve_store
from samestep.world import missing_ranks, rendezvous
from samestep.world.failures import FAILURE_KEY
from samestep.world.missing_ranks import Notices, describe_missing
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

PAIR = RankInfo("mpiexec (MPICH)", 0, 2, 0, 1, job="hydra 17")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    file = tmp_path / "nodes"
    file.write_text("node1\nnode2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(file))
    monkeypatch.setattr(missing_ranks, "FIRST_NOTICE", 0.1)
    return {"PBS_NODEFILE": str(file)}


def test_rank_0_names_a_rank_that_never_starts(nodes: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    store = serve_store(0, only_here=True, timeout=timedelta(seconds=5))
    world = World(PAIR, torch.device("cpu"), timeout=timedelta(seconds=0.5), store=store)
    with (
        pytest.raises(RunFailed, match=r"no sign of rank 1 of 2 \(node2\) after 1 s, so the run ends"),
        world.together("reading the configuration"),
    ):
        pass
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "samestep: no sign of rank 1 of 2 (node2) after 0 s; the run ends if this lasts for 0 s"
    assert len(said) == 3, "after one notice, two and four"
    assert b"no sign of rank 1" in store.get(FAILURE_KEY), "the ranks that did start end with the same sentence"


def test_one_rank_of_a_node_says_that_it_looks_for_rank_0(
    nodes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    second = RankInfo("mpiexec (MPICH)", 1, 2, 0, 1, address="127.0.0.1", job="hydra nobody")
    with pytest.raises(Exception, match=r"rank 0 was not found on 127\.0\.0\.1"):
        rendezvous.open_store(second, {"SAMESTEP_SECRET": "x" * 32}, timedelta(seconds=0.3))
    assert "has looked for rank 0 on 127.0.0.1 for 0 s; it ends if this lasts for 0 s" in capsys.readouterr().err


def test_many_ranks_are_named_in_short(nodes: dict[str, str]) -> None:
    info = RankInfo("mpiexec (MPICH)", 0, 24, 0, 12)
    assert describe_missing([13], info, nodes) == "rank 13 of 24 (node2)"
    assert describe_missing(range(11, 24), info, nodes) == (
        "ranks 11, 12, 13, 14, 15, 16, 17, 18 and 5 more of 24 (node1, node2)"
    )
    uneven = RankInfo("mpiexec (MPICH)", 0, 5, 0, 3)
    assert describe_missing([3, 4], uneven, nodes) == "ranks 3, 4 of 5", "which host has them is not known"


def test_a_notice_comes_after_a_minute_two_and_four() -> None:
    notices = Notices(60.0)
    assert [second for second in range(0, 500) if notices.is_due(second)] == [60, 120, 240, 480]
