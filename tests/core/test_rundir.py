"""One writer per run."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.core.rundir import RunDir

HOLD = "import sys, time; from pathlib import Path; from samestep.core.rundir import RunDir; "
HOLD += "lock = RunDir(Path(sys.argv[1])).lock(); print('held', flush=True); time.sleep(60)"


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.timeout(900)
def test_a_live_holder_is_named_and_a_killed_one_is_gone(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(UserError, match=f"in use by a live run .*{process.pid}"):
        RunDir(tmp_path).lock()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = RunDir(tmp_path).lock()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    lock.release()


@pytest.mark.timeout(900)
def test_a_fork_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    fork = "import os; child = os.fork(); child or time.sleep(30); print(child, flush=True)"
    code = HOLD.replace("print('held', flush=True)", fork)
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        RunDir(tmp_path).lock().release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_disk_without_file_locks_is_not_called_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", no_locks)
    with pytest.raises(UserError, match=r"cannot be locked .*No locks available"):
        RunDir(tmp_path / "run").lock()
