"""What jobs need of training: to end after a stage, to count their own time limit, and codes that a script can read."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir

ARGS = ("train", "system.two_stages", "name=run", "distributed=cpu", "--quiet")


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    return RunDir(tmp_path / "runs" / "run")


def test_a_run_can_end_after_a_stage_and_go_on(run: RunDir) -> None:
    assert main([*ARGS, "until=dump"]) == 0
    assert read_json(run.status) == {"status": "waiting", "after": "dump"}
    assert list(read_json(run.first_launch)) == ["dump"], "the other stage has not begun"
    assert main([*ARGS, "until=dump"]) == 0
    assert read_json(run.status)["status"] == "waiting"
    assert main(["train", "--resume", str(run.path), "until=null"]) == 0
    assert read_json(run.status) == {"status": "done"}


def test_the_last_stage_is_the_end(run: RunDir) -> None:
    assert main([*ARGS, "until=train"]) == 0
    assert read_json(run.status) == {"status": "done"}


def test_a_stage_that_is_none_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS, "until=tune"]) == 2
    assert "until=tune is not a stage of system.two_stages; choose one of dump, train" in capsys.readouterr().err


def test_the_time_limit_counts_from_the_start_of_the_job(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMESTEP_BEGAN", str(int(time.time()) - 3600))
    assert main([*ARGS, "max_time=59m"]) == 75
    assert read_json(run.status)["status"] == "preempted"
    assert main([*ARGS, "max_time=2h"]) == 0


SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}


@pytest.mark.parametrize(("env", "code"), [({}, 75), (SRUN, 0)])
def test_a_stop_before_training_never_hides_a_failure(env: dict[str, str], code: int) -> None:
    """srun reports the largest code of all ranks, and stops the peers of a failed rank with a signal."""
    command = [sys.executable, "-m", "samestep", *ARGS]
    with subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 30
        while not _catches(process.pid, signal.SIGTERM) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM before training began" in process.communicate(timeout=30)[1]
        assert process.returncode == code


def _catches(process: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)
