"""What the system knows of processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from samestep.core import processes


@pytest.mark.timeout(900)
def test_the_state_of_a_process() -> None:
    process = subprocess.Popen(["sleep", "50"])
    try:
        assert processes.state(process.pid) == ""
        os.kill(process.pid, signal.SIGSTOP)
        while processes.state(process.pid) != "stopped":
            time.sleep(0.01)
    finally:
        process.kill()
    process.wait()
    assert processes.state(process.pid) == "gone"


def test_who_a_process_is() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "a) b"], stdin=subprocess.PIPE, env={"A": "b=c", "E": ""}
    ) as process:
        while processes.command(process.pid)[1:2] != ["-c"]:  # until it has become that program
            time.sleep(0.01)
        assert processes.command(process.pid)[1:4] == ["-c", "input()", "a) b"]
        assert processes.environment(process.pid) == {"A": "b=c", "E": ""}
        assert processes.parent(process.pid) == os.getpid()
        assert int(processes.start_time(process.pid)) >= int(processes.start_time(os.getpid()))
        assert processes.is_own(process.pid)
        process.communicate(b"\n")


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    pid = process.pid
    assert (processes.command(pid), processes.environment(pid), processes.parent(pid)) == ([], {}, 0)
    assert (processes.start_time(pid), processes.is_own(pid)) == ("", False)
