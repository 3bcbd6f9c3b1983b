"""Workers start, find each other, and leave nothing behind."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from samestep.launching import local
from system.requirements import MODULES
from toys import gone

pytestmark = pytest.mark.timeout(900)


def print_rank(greeting: str) -> int:
    print(greeting, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["COLOUR"])
    return int(os.environ["RANK"])


def test_workers_have_their_rank_environment_and_exit_code(tmp_path: Path) -> None:
    workers = local.start(print_rank, 3, "hello", logs=tmp_path, env={"COLOUR": "blue"})
    assert workers.wait(30) == [0, 1, 2]
    assert workers.output(2).split() == ["hello", "2", "3", "blue"]


def sleep_long(ready: Path) -> None:
    (ready / os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)


def test_one_dead_rank_ends_the_others_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PEER_TIMEOUT", 1.0)
    workers = local.start(sleep_long, 2, tmp_path, logs=tmp_path / "logs")
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        time.sleep(0.05)
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    workers.kill(1)
    began = time.monotonic()
    codes = workers.wait(50)
    assert time.monotonic() - began < 30
    assert codes == [None, -signal.SIGKILL]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def sleepers(folder: Path) -> None:
    """Started by a process that is then killed."""
    local.start(sleep_long, 2, folder, logs=folder / "logs").wait(60)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    starter = multiprocessing.get_context("forkserver").Process(target=sleepers, args=(tmp_path,))
    starter.start()
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        time.sleep(0.05)
    starter.kill()
    starter.join()
    for rank in range(2):
        while not gone(int((tmp_path / str(rank)).read_text())):  # the test's own time limit ends this loop
            time.sleep(0.05)


def use_device(greeting: str) -> int:
    """As CUDA does when a process first uses it."""
    import torch

    if torch.cuda._is_in_bad_fork():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    print(greeting, os.environ["RANK"], os.environ["COLOUR"], torch.get_num_threads())
    return 0


def after_device_use(folder: Path) -> None:
    os.environ["PYTHONPATH"] = MODULES  # the server does not get sys.path
    env = {"COLOUR": "red", "OMP_NUM_THREADS": "1"}
    workers = local.start(use_device, 2, "hello", logs=folder, env=env, preload=("torch", "launching.device_use"))
    assert workers.wait(120) == [0, 0], workers.output(0)
    assert [workers.output(rank).split() for rank in range(2)] == [["hello", f"{rank}", "red", "1"] for rank in (0, 1)]


def test_workers_can_use_a_gpu_though_an_import_has_used_it_already(tmp_path: Path) -> None:
    """They are not forked from the process that imported it."""
    starter = multiprocessing.get_context("spawn").Process(target=after_device_use, args=(tmp_path,))
    starter.start()
    starter.join()
    assert starter.exitcode == 0
