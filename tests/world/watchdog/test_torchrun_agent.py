"""The process that a worker starts before it ends: it ends an agent that stays, and nothing else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from samestep.world.watchdog import torchrun_agent

pytestmark = pytest.mark.timeout(900)


def start_ending(pid: int, timeout: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", torchrun_agent.__name__, str(pid), str(timeout)])


def test_an_agent_that_stays_is_ended() -> None:
    agent = subprocess.Popen(["sleep", "100"])
    ending_process = start_ending(agent.pid, 0.5)
    assert agent.wait() == -signal.SIGTERM
    assert ending_process.wait() == 0


def test_one_that_ignores_the_request_is_forced() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
    agent = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert agent.stdout and agent.stdout.readline()
    torchrun_agent.end_process(agent.pid, timeout=0.1, between=0.5)
    assert agent.wait() == -signal.SIGKILL


def test_it_ends_with_an_agent_that_ends_by_itself() -> None:
    agent = subprocess.Popen(["sleep", "0.1"])
    agent.wait()
    began = time.monotonic()
    assert start_ending(agent.pid, 50.0).wait() == 0
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "1"},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "SAMESTEP_LAUNCHER": "elastic"},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "2"},
    ],
)
def test_it_is_started_only_by_one_rank_of_stock_torchrun_without_restarts(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: started.append(args))
    torchrun_agent.end_agent_later(env)
    assert not started
    last = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    monkeypatch.setattr(os, "getppid", lambda: 1)  # what adopts orphans, after the agent was killed
    torchrun_agent.end_agent_later(last)
    assert not started
    monkeypatch.setattr(os, "getppid", os.getpid)
    torchrun_agent.end_agent_later(last)
    assert len(started) == 1
