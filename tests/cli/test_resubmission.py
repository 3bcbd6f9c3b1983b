"""Submitting a run that exists already: what goes on, and what is refused before it waits in a queue."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.core.rundir import RunDir

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "sine.py")
RUN = (EXAMPLE, "--preset=verify", "name=mine", "distributed=cpu")
SUBMIT = ("submit", *RUN, "--on=slurm")
RESUME = ("submit", "--resume", "mine", "--on=slurm")

HOLD = """
import sys
from pathlib import Path
from samestep.core.rundir import RunDir
lock = RunDir(Path(sys.argv[1])).lock()
print("locked", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory in a folder with a scheduler that takes every job, and says that all of them have ended."""
    (tmp_path / "bin").mkdir()
    for name, body in {"sbatch": "echo 41", "scontrol": 'echo "JobId=$4 JobState=$(cat state)"'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "state").write_text("COMPLETED")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("SAMESTEP_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    return RunDir(tmp_path / "runs" / "mine")


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 2
    return capsys.readouterr().err


def test_a_run_that_waits_or_runs_is_not_submitted_twice(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SUBMIT) == 0
    for state in ("PENDING", "RUNNING"):
        Path("state").write_text(state)
        output = refusal(capsys, *SUBMIT)
        assert f"{run.path} has a job that waits or runs already, 41; wait for its end, or cancel it" in output
        assert "scancel 41" in output
    Path("state").write_text("FAILED")
    assert main(SUBMIT) == 0


def test_finished_and_running_runs_are_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *RUN, "--quiet", "schedule=constant"]) == 0
    for command in ((*SUBMIT, "schedule=constant"), RESUME):
        assert f"{run.path} is finished, so there is nothing to go on with" in refusal(capsys, *command)
    assert not run.job.exists(), "nothing was left by what was refused"
    assert main([*RESUME, "max_steps=12"]) == 0, "a longer one has something to do"
    run.status.write_text('{"status": "running"}')
    command = [sys.executable, "-P", "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        assert "is in use by a live run" in refusal(capsys, *RESUME)
        process.communicate("\n", timeout=30)
    assert main(RESUME) == 0


WITHOUT_DATA = """
from pathlib import Path
read = points
def points(count):
    if not Path("data").exists():
        raise RuntimeError("there is no data")
    return read(count)
"""


def test_a_run_whose_first_job_failed_before_training_is_submitted_again_by_its_name(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have left its settings, which are not those of a run that has trained."""
    Path("broken.py").write_text(Path(EXAMPLE).read_text() + WITHOUT_DATA)
    broken = ("broken.py", *RUN[1:])
    assert main(["submit", *broken, "--on=slurm"]) == 0
    assert "has not begun to train, so there is nothing to resume; submit it as the first time, with name=mine" in (
        refusal(capsys, *RESUME)
    )
    assert main(["train", *broken, "--quiet", f"out={run.path.parent}"]) == 1  # as the job does
    assert run.config.exists()
    Path("data").touch()
    assert main(["submit", *broken, "--on=slurm", "seed=7"]) == 0
    assert main(["train", *broken, "seed=7", "--quiet"]) == 0
    assert json.loads(run.config.read_text())["config"]["seed"] == 7
    assert "holds a different run (seed differ)" in refusal(capsys, "submit", *broken, "--on=slurm", "seed=8")
