"""Another user of the host takes a connection between two ranks: nothing of his runs, and the run says what it was."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from security import connection_thief
from system.hosts import SOON, require_hosts, wait_for
from system.requirements import MODULES

pytestmark = pytest.mark.timeout(600)
RECIPE = str(Path(__file__).parents[1] / "cli" / "trouble.py")
SETTINGS = ("max_steps=20", "checkpoint.every_steps=5", "batch_size=2", "distributed.device=cpu")


@pytest.fixture
def network() -> Iterator[list[str]]:
    """A command that runs another one in a network of its own, where nothing else listens."""
    require_hosts()
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"], stdout=-1
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    holder.kill()
    holder.wait()


@pytest.mark.parametrize(("skip", "groups"), [(0, "default_pg|control|outcomes|saves"), (6, "saves")])
def test_what_a_stranger_sends_is_never_executed(skip: int, groups: str, network: list[str], tmp_path: Path) -> None:
    """Neither in the first groups of the ranks, nor in that of the thread which saves."""
    for attempt in range(5):  # the real rank may be faster
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ended, did = attacked_run(network, folder, skip)
        assert not (folder / "mark").exists(), did
        if "answered" in did:
            break
        assert ended.returncode == 0, ended.stderr
    assert "answered" in did, did
    assert ended.returncode == 1, ended.stderr
    assert re.search(f"in the process group '({groups})'.*: a stranger holds the connection", ended.stderr)
    assert "Traceback" not in ended.stderr


def attacked_run(network: list[str], folder: Path, skip: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """A run of two ranks while a stranger tries, and what he did."""
    env = {**os.environ, "PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
    thief_command = [*network, sys.executable, connection_thief.__file__, str(folder / "mark"), str(skip)]
    printed = folder / "thief.txt"
    with open(printed, "w") as file:
        thief = subprocess.Popen(thief_command, stdout=file, stderr=file, env=env)
    try:
        wait_for(lambda: "ready" in printed.read_text(), SOON, "for the stranger")
        train = [*network, sys.executable, "-m", "samestep", "train", RECIPE, "--nproc=2", f"out={folder}", "name=run"]
        ended = subprocess.run(
            [*train, *SETTINGS], capture_output=True, text=True, env=env, timeout=300, cwd=folder, check=False
        )
    finally:
        thief.kill()
        thief.wait()
    return ended, printed.read_text()
