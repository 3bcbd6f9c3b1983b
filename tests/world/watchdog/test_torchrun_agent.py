"""A worker of torchrun starts a process that ends its agent, and only where that is right."""

import os
import subprocess

import pytest

from samestep.world.watchdog import ending


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
    ending.end_agent_later(env)
    assert not started
    last = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    monkeypatch.setattr(os, "getppid", lambda: 1)  # what adopts orphans, after the agent was killed
    ending.end_agent_later(last)
    assert not started
    monkeypatch.setattr(os, "getppid", os.getpid)
    ending.end_agent_later(last)
    assert len(started) == 1
