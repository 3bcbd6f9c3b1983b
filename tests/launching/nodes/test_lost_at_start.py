"""A node that is killed with all its ranks just after the start, at any moment: the others never stay silent."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import samestep
from launching.test_launcher import wait_for
from security.strangers import process_tree

pytestmark = pytest.mark.timeout(900)
_DRAWN = [round(random.Random(seed).uniform(0.1, 2.5), 2) for seed in range(3)]
MOMENTS = [0.05, _DRAWN[0], *(pytest.param(moment, marks=pytest.mark.long) for moment in (0.0, *_DRAWN[1:]))]
"""Seconds after the start: before there are ranks, while they import torch, while they wait for each other."""
GRACE = 3
TESTS = Path(__file__).parents[2]
TRAIN = ["-m", "samestep", "train", "faults.toy", "distributed.device=cpu", "max_steps=100000", "step_delay=0.1"]


@dataclass
class Nodes:
    """Two nodes on this machine, each a launcher of its own."""

    folder: Path
    processes: list[subprocess.Popen[bytes]]

    def start(self) -> None:
        with socket.create_server(("", 0)) as free:
            rdzv = f"127.0.0.1:{free.getsockname()[1]}"
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = f"{TESTS}:{Path(samestep.__file__).parents[1]}"
        for rank in range(2):
            options = ["--nproc=1", "--nodes=2", f"--rdzv={rdzv}", f"--node-rank={rank}", f"--grace={GRACE}"]
            with open(self.folder / f"node_{rank}.txt", "wb") as printed:
                command = [sys.executable, *TRAIN, "name=run", *options]
                process = subprocess.Popen(command, stdout=printed, stderr=printed, env=env, cwd=self.folder)
            self.processes.append(process)

    def printed(self, rank: int) -> str:
        return (self.folder / f"node_{rank}.txt").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        """The launcher of a node and all its ranks, like a power failure."""
        for pid in process_tree(self.processes[rank].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, [])
    yield nodes
    for rank in range(len(nodes.processes)):
        nodes.kill(rank)
        nodes.processes[rank].wait()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_first_node_ends_within_seconds(nodes: Nodes, moment: float) -> None:
    nodes.start()
    wait_for(lambda: "rank 1 of 2 here" in nodes.printed(1), 60)
    time.sleep(moment)
    nodes.kill(1)
    assert nodes.processes[0].wait(90) == 1, nodes.printed(0)
    # A connection with unread data is reset by its end, and not closed.
    assert re.search(r"(closed|broke) the connection.*; the run can be resumed with --resume", nodes.printed(0))


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_first_node_obeys_sigterm(nodes: Nodes, moment: float) -> None:
    """Whether the second one is killed shortly before or after."""
    nodes.start()
    wait_for(lambda: "rank 1 of 2 here" in nodes.printed(1), 60)
    time.sleep(moment)
    if moment > 1.0:
        nodes.kill(1)
    nodes.processes[0].send_signal(signal.SIGTERM)
    nodes.kill(1)
    assert nodes.processes[0].wait(GRACE + 90) in (1, 75), nodes.printed(0)
    assert "Traceback" not in nodes.printed(0)
