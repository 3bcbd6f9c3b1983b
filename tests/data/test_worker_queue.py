"""Data workers that cannot pass on a batch say why: full shared memory, a worker that is gone."""

import subprocess
import sys

import pytest

from samestep.data.worker_queue import lost_worker

pytestmark = pytest.mark.timeout(300)
CODE = """
import os, signal, subprocess, torch
from samestep.core.errors import NoSpace
from samestep.data.order import Shuffled
from samestep.data.loading import Steps, loader
from samestep.data.worker_queue import WorkerLost, lost_worker
from samestep.world.world import World

class Rows:
    def __init__(self, collated): self.collated = collated
    def __len__(self): return 64
    def __getitem__(self, index): return {"x": torch.ones(4000)}
    def __getattr__(self, name):
        if name == "rows" and not self.collated:
            return lambda indices: {"x": torch.ones(len(indices), 4000)}
        raise AttributeError(name)

def first_error(size, collated):
    subprocess.run(["mount", "-o", f"remount,size={size}", "/dev/shm"], check=True)
    load = loader(Steps(Rows(collated), Shuffled(64, 8, 0), World.single(), 8, None), 8, 2, 2, False)
    try:
        for step in range(8):
            load(step)
    except NoSpace as error:
        print("REFUSED", error, flush=True)

first_error("4k", True)
first_error("64k", True)
first_error("64k", False)
subprocess.run(["mount", "-o", "remount,size=64m", "/dev/shm"], check=True)
load = loader(Steps(Rows(True), Shuffled(64, 8, 0), World.single(), 8, None), 8, 2, 2, False)
load(0)
try:
    os.kill(load._iterator._workers[1].pid, signal.SIGKILL)
    load._iterator._workers[1].join()
    for step in range(1, 8):
        load(step)
except WorkerLost as error:  # noticed when the rank asked for its batch
    print("LOST", error, flush=True)
except RuntimeError as error:  # noticed at any other time
    print("LOST", lost_worker(error), flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as at the end of a rank: torch's handler would raise once more
"""


def test_a_worker_without_shared_memory_says_so_and_nobody_waits_for_it() -> None:
    script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", CODE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if "Operation not permitted" in ended.stderr or "not permitted" in ended.stderr:
        pytest.skip("/dev/shm cannot be replaced here")
    assert ended.returncode == 0, ended.stderr
    *refused, lost = ended.stdout.splitlines()
    assert len(refused) == 3, "full from the start, filled by a collated batch, and by one that is passed on"
    for line in refused:
        assert "shared memory, /dev/shm, is full (No space left on device; it holds" in line
        assert "num_workers=0" in line and "--shm-size" in line
    assert lost.startswith("LOST a data worker has ended (") and "num_workers" in lost
    assert "Traceback" not in ended.stderr, ended.stderr


def test_another_failure_of_the_data_keeps_its_traceback() -> None:
    assert lost_worker(RuntimeError("Caught RuntimeError in DataLoader worker process 0.")) is None
