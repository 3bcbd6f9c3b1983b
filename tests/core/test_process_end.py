"""The process that ends another one: only if that stays, and nothing else."""

import signal
import subprocess
import sys
import time

import pytest

from samestep.core import process_end

pytestmark = pytest.mark.timeout(900)


def start_ending(pid: int, timeout: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", process_end.__name__, str(pid), str(timeout)])


def test_a_process_that_stays_is_ended() -> None:
    process = subprocess.Popen(["sleep", "100"])
    ending = start_ending(process.pid, 0.5)
    assert process.wait() == -signal.SIGTERM
    assert ending.wait() == 0


def test_one_that_ignores_the_request_is_forced() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    process_end.end_process(process.pid, timeout=0.1, between=0.5)
    assert process.wait() == -signal.SIGKILL


def test_it_ends_with_one_that_ends_by_itself() -> None:
    process = subprocess.Popen(["sleep", "0.1"])
    process.wait()
    began = time.monotonic()
    assert start_ending(process.pid, 50.0).wait() == 0
    assert time.monotonic() - began < 40
