"""A lease keeps hosts apart that do not see each other's locks. Here every process has its own lock file and boot."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import EXIT_USER
from samestep.core.lease import Holder, Lease
from samestep.core.rundir import RunDir

pytestmark = pytest.mark.timeout(300)
PROGRAM = """
import fcntl, os, sys, time
from pathlib import Path
from samestep.core import lease
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir

folder, host, still = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
lease.machine_id, lease.socket.gethostname = lambda: host, lambda: host
lease.INTERVAL, lease.STILL = 0.2, still
fcntl.lockf = lambda *args: None  # locks of one host are not seen by another
began = time.monotonic()
try:
    lock = RunDir(folder).lock()
except UserError as error:
    print("refused", error, flush=True)
    sys.exit(2)
print("held", round(time.monotonic() - began, 3), flush=True)
for line in sys.stdin:
    lock.release()
    break
"""


class Launch:
    """A process that opens the run as a process of some host, and holds it until it is told to end."""

    def __init__(self, folder: Path, host: str, still: float = 3.0, **env: str) -> None:
        job = {name: value for name, value in os.environ.items() if name not in ("SLURM_JOB_ID", "PBS_JOBID")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), host, str(still)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**job, **env},
        )

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def held(self) -> float:
        """The seconds that opening took."""
        word, seconds = self.answer().split()
        assert word == "held"
        return float(seconds)

    def end(self) -> tuple[int, str]:
        """The exit code, and what was printed to stderr."""
        _, printed = self.process.communicate("end\n" if self.process.poll() is None else None, timeout=60)
        return self.process.returncode, printed


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Any]:
    started: list[Launch] = []

    def launch(host: str, **options: Any) -> Launch:
        started.append(Launch(tmp_path / "run", host, **options))
        return started[-1]

    yield launch
    for each in started:
        each.process.kill()
        each.process.wait()


def test_a_run_is_opened_at_once_and_the_lease_is_gone_after_a_clean_end(launches: Any, tmp_path: Path) -> None:
    first = launches("a")
    assert first.held() < 2
    assert Holder.read(tmp_path / "run/lease").host == "a"  # type: ignore[union-attr]
    assert first.end() == (0, "")
    assert not (tmp_path / "run/lease").exists()
    second = launches("b")
    assert second.held() < 2


def test_a_live_holder_on_another_host_is_seen_by_its_heartbeats_and_named(launches: Any) -> None:
    first = launches("a")
    first.held()
    second = launches("b", still=30.0)
    refusal = second.answer()
    assert f'is in use by a live run ({{"host": "a", "pid": {first.process.pid}}})' in refusal
    code, printed = second.end()
    assert code == 2
    assert printed.count("waiting 30 s") == 1, "it says so once"
    assert first.end() == (0, ""), "the first has noticed nothing"


def test_a_holder_that_was_killed_on_another_host_is_replaced_when_its_heartbeats_stood_still(launches: Any) -> None:
    first = launches("a")
    first.held()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = launches("b")
    assert second.held() >= 3.0
    code, printed = second.end()
    assert code == 0
    assert f"was last used by process {first.process.pid} on a; waiting 3 s" in printed


def test_a_holder_that_was_killed_on_this_host_is_replaced_at_once(launches: Any) -> None:
    first = launches("a")
    first.held()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert launches("a").held() < 2


def test_a_live_holder_on_this_host_is_known_by_its_process(launches: Any) -> None:
    first = launches("a")
    first.held()
    began = time.monotonic()
    assert launches("a", still=60.0, SLURM_JOB_ID="7").answer().startswith("refused")
    assert time.monotonic() - began < 30


def test_a_holder_that_was_suspended_ends_when_it_finds_its_lease_taken(launches: Any, tmp_path: Path) -> None:
    first = launches("a")
    first.held()
    first.process.send_signal(signal.SIGSTOP)
    second = launches("b")
    assert second.held() >= 3.0
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(30) == EXIT_USER
    _, printed = first.process.communicate()
    assert f"process {second.process.pid} on b has taken over the run directory {tmp_path / 'run'}" in printed
    assert "Traceback" not in printed
    assert Holder.read(tmp_path / "run/lease").host == "b", "its lease was not touched"  # type: ignore[union-attr]
    assert second.end()[0] == 0


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_the_same_job_takes_over_at_once_on_another_host(launches: Any, name: str) -> None:
    first = launches("a", **{name: "41"})
    first.held()
    assert launches("b", still=30.0, **{name: "41"}).held() < 2
    assert first.process.wait(30) == EXIT_USER, "it is not alone any more"


def test_another_job_does_not(launches: Any) -> None:
    launches("a", SLURM_JOB_ID="41").held()
    assert launches("b", still=30.0, SLURM_JOB_ID="42").answer().startswith("refused")


def test_of_two_that_wait_for_the_same_only_one_takes_over(launches: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    gone = Holder("gone", 1, "gone", "", "", "0")
    (tmp_path / "run/lease").write_bytes(gone.content())
    answers = [launch.answer().split()[0] for launch in [launches(host) for host in ("a", "b", "c")]]
    assert sorted(answers) == ["held", "refused", "refused"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b"[" * 5000, json.dumps({"host": 3}).encode()])
def test_a_file_that_is_no_lease_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease").write_bytes(content)
    lease = Lease(tmp_path / "lease")
    assert Holder.read(tmp_path / "lease").pid == os.getpid()  # type: ignore[union-attr]
    lease.release()
    assert not (tmp_path / "lease").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samestep.core.lease.INTERVAL", 0.05)
    target = tmp_path / "target"
    target.write_text("mine")
    lease = Lease(tmp_path / "lease")
    (tmp_path / "lease").unlink()
    (tmp_path / "lease").symlink_to(target)
    time.sleep(0.5)
    lease.release()
    assert target.read_text() == "mine"


def test_a_process_may_open_a_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samestep.core.lease.INTERVAL", 0.05)
    first = RunDir(tmp_path).lock()
    second = RunDir(tmp_path).lock()
    time.sleep(0.5)
    second.release()
    first.release()
    with pytest.raises(FileNotFoundError):
        (tmp_path / "lease").read_text()
