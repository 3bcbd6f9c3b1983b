"""A loop that people bring, under srun on a real SLURM cluster of two nodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.cluster import Cluster
from system.cluster_runs import ClusterRuns
from system.requirements import MODULES

pytestmark = pytest.mark.timeout(600)
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_example_is_one_training_of_two_ranks(cluster: Cluster, tmp_path: Path) -> None:
    with ClusterRuns(cluster, tmp_path).open():  # node names do not resolve here, so the address of rank 0 is given
        env = {**os.environ, **cluster.env, "PYTHONPATH": MODULES, "MASTER_ADDR": "127.0.0.1"}
        command = ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", sys.executable, str(EXAMPLE)]
        found = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("epoch 20 loss") == 1, "one rank prints: they know of each other"
    alone = subprocess.run(
        [sys.executable, EXAMPLE], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True
    )
    assert found.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
