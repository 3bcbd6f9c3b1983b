"""A mistake in the command ends every rank with 2 at once, under every launcher: none waits for a peer that is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.requirements import MODULES, require

LAUNCHERS = {
    "mpich": ["mpiexec.mpich", "-n"],
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node"],
}
"""Before the number of ranks."""
CODES = {"mpich": 2, "openmpi": 2, "torchrun": 1}
"""torchrun has only one code for failed ranks."""
MISTAKES = {
    "every rank finds it": (2, ["nosuch"], {}, "nosuch"),
    "rank 0 finds it, one waits and one comes late": (3, ["late.py", "nosuch=1"], {"LATE": "2"}, "There is no setting"),
    "a rank other than 0 finds it": (2, ["late.py"], {"REFUSES": "1"}, "this rank alone refuses"),
}
"""Ranks, args, variables, and what is said."""
SECONDS = 150.0
"""Far below the 600 for which ranks look for rank 0; a busy machine takes a minute to import torch."""
LATE = """
import os, time
from samestep.core.errors import UserError
from samestep.world.rank_discovery import discover

rank = str(discover(os.environ).rank)
if rank == os.environ.get("LATE"):
    time.sleep(5)
if rank == os.environ.get("REFUSES"):
    raise UserError("this rank alone refuses")
from faults.toy import *
"""


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_end(tmp_path: Path, launcher: str, mistake: str) -> None:
    require("mpiexec", [LAUNCHERS[launcher][0]])
    ranks, args, variables, sentence = MISTAKES[mistake]
    (tmp_path / "late.py").write_text(LATE)
    env = {**os.environ, "PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1", **variables}
    command = [*LAUNCHERS[launcher], str(ranks), "-m" if launcher == "torchrun" else sys.executable]
    command += ["samestep"] if launcher == "torchrun" else ["-m", "samestep"]
    done = subprocess.run(
        [*command, "train", *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == CODES[launcher], done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "runs").exists(), "no run was begun"
