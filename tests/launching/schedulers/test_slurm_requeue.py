"""What a SLURM job does after its run stopped before the end, with a stub SLURM."""

from pathlib import Path

import pytest

from samestep.core.rundir import RunDir
from samestep.launching.schedulers import slurm_requeue
from samestep.launching.schedulers.requeue import begin_counting

SHOWN = "JobId=7 JobState={} Restarts=0 RunTime=00:09:10 TimeLimit=00:10:00 TimeMin=N/A"


class StubSlurm:
    """A job of a run, and the scontrol that it calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, RunDir(folder / "run")
        self.script = self.run.job / "train.sh"
        self.answer()
        begin_counting(self.run)

    def answer(self, state: str = "RUNNING", requeue: str = "exit 0", shown: str = SHOWN) -> None:
        stub = self.folder / "scontrol"
        stub.write_text(f'#!/bin/bash\n[ "$1" = show ] && echo "{shown.format(state)}" && exit\n{requeue}\n')
        stub.chmod(0o755)

    def save(self, step: int) -> None:
        (self.run.checkpoints("fit") / f"step_{step:08d}").mkdir(parents=True)

    def stopped(self, requeues: int = 0) -> int:
        env = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(requeues)}
        return slurm_requeue.main([str(self.script), "100", "60"], env)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubSlurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("signal.signal", lambda *args: None)  # this process goes on
    return StubSlurm(tmp_path)


def test_a_time_limit_that_is_too_short_for_start_up_is_said(
    stub: StubSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stub.stopped() == 0
    assert capsys.readouterr().out == (
        "samestep: stopped before a new step was saved; the job queues again and goes on from there\n"
    )
    assert stub.stopped(requeues=1) == 0
    assert capsys.readouterr().out == (
        "samestep: stopped before a new step was saved; not queued again: 2 launches in a row made no step, so the "
        f"time limit is too short for start-up; go on with: sbatch --time=LONGER {stub.script}\n"
    )


def test_what_was_saved_is_named(stub: StubSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    stub.save(12)
    stub.stopped()
    assert "stopped and saved (stage fit at step 12); the job queues again" in capsys.readouterr().out
    stub.save(14)
    stub.stopped(requeues=100)
    output = capsys.readouterr().out
    assert "saved (stage fit at step 14); not queued again: it was queued again as often as --max-requeues" in output
    assert output.endswith(f"go on with: sbatch {stub.script}\n")


def test_not_queued_again_is_said_when_slurm_refused(stub: StubSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answer(requeue="echo 'slurm_requeue error: Requested operation is presently disabled' >&2; exit 1")
    assert stub.stopped() == 0
    output = capsys.readouterr().out
    assert "not queued again: SLURM says slurm_requeue error: Requested operation is presently disabled" in output


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_a_job_that_slurm_ends_itself_says_nothing(
    stub: StubSlurm, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answer(state, requeue="touch asked")
    assert stub.stopped() == 0
    assert capsys.readouterr().out == "" and not Path("asked").exists()


@pytest.mark.parametrize(
    ("shown", "reached"),
    [
        (SHOWN, True),
        (SHOWN.replace("00:09:10", "00:01:00"), False),  # preempted
        (SHOWN.replace("00:10:00", "UNLIMITED"), False),
        (SHOWN.replace("00:10:00", "1-00:10:00"), False),
        ("", True),
    ],
)
def test_whether_the_time_limit_was_reached(shown: str, reached: bool) -> None:
    assert slurm_requeue.reached_limit(shown, grace=60) == reached
