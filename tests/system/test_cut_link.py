"""The link between two hosts is cut: each side reports what it knows, and everything ends, torchrun's agents too."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from faults import hang_faults
from samestep.core.records import read_json, write_json
from samestep.core.rundir import RunDir
from system.hosts import Host, Process, hosts, wait_for

pytestmark = pytest.mark.timeout(600)
LIMIT, START_TIMEOUT = 10.0, 300.0
END_TIMEOUT = 150.0
"""Seconds from the cut to the end of everything: the limit, the verdict, and forty for an agent to exit by itself."""
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sequence[Host], Path]]:
    folder = tmp_path_factory.mktemp("cut")
    with hosts(2, folder, "cut") as made:
        yield made, folder


def begin(
    made: Sequence[Host], folder: Path, label: str, launcher: Sequence[str], last_args: Sequence[str]
) -> list[Process]:
    """Start a run on both hosts, and wait until it has done some steps."""
    settings = hang_faults.settings(folder / "runs", LIMIT, name=label, max_steps=1_000_000)
    settings["watch"] = {"limit": LIMIT, "start": 120.0}
    write_json(folder / f"{label}.yaml", settings)
    env = {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    train = ["-m", "samestep", "train", hang_faults.NAME, f"--config={folder / f'{label}.yaml'}"]
    commands = [
        [sys.executable, *(arg.format(rank=rank) for arg in (*launcher, *train, *last_args))] for rank in range(2)
    ]
    started = [
        host.start(*command, env=env, output=folder / f"{label}_{host.name}.txt", folder=folder)
        for host, command in zip(made, commands)
    ]
    run = RunDir(folder / "runs" / label)
    wait_for(
        lambda: (read_json(run.heartbeat(1)) or {}).get("step", 0) > hang_faults.HANG_STEP,
        START_TIMEOUT,
        f"for steps of {label}",
    )
    return started


def exit_codes(started: Sequence[Process], within: float) -> list[int]:
    end = time.monotonic() + within
    return [process.wait(max(0.1, end - time.monotonic())) for process in started]


def output(folder: Path, label: str, host: Host) -> str:
    return (folder / f"{label}_{host.name}.txt").read_text(errors="replace")


@pytest.fixture
def restored(pair: tuple[Sequence[Host], Path]) -> Iterator[tuple[Sequence[Host], Path]]:
    yield pair
    for host in pair[0]:
        host.restore_link()
        host.kill()


def test_under_torchrun(restored: tuple[Sequence[Host], Path]) -> None:
    made, folder = restored
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=1", "--nnodes=2", "--node_rank={rank}"]
    started = begin(made, folder, "torchrun", [*torchrun, "--master_addr=node1", "--master_port=29701"], [])
    made[1].cut_link()
    codes = exit_codes(started, END_TIMEOUT)
    assert 0 not in codes
    wait_for(lambda: not any(host.processes() for host in made), 60, "for all to end")
    assert "samestep: rank 1 on node2 sends no heartbeat" in output(folder, "torchrun", made[0])
    run = RunDir(folder / "runs" / "torchrun")
    assert read_json(run.stall_report)["rank"] == 1
    assert "the rendezvous store has not answered" in read_json(run.exit_report(1))["text"], "all that it can know"


def test_under_our_own_launcher(restored: tuple[Sequence[Host], Path]) -> None:
    made, folder = restored
    args = ["--nproc=1", "--nodes=2", "--node-rank={rank}", "--rdzv=node1:29702"]
    started = begin(made, folder, "ours", [], args)
    made[1].cut_link()
    assert 0 not in exit_codes(started, END_TIMEOUT)
    wait_for(lambda: not any(host.processes() for host in made), 60, "for all to end")
    assert "node2" in output(folder, "ours", made[0])
    assert "the first node, node1" in output(folder, "ours", made[1])
