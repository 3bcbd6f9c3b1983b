"""Launches that saved something, and launches that did not."""

from pathlib import Path

from samestep.core.rundir import RunDir
from samestep.launching.schedulers.requeue import begin_counting, count_launch


def save(run: RunDir, stage: str, step: int) -> None:
    (run.checkpoints(stage) / f"step_{step:08d}").mkdir(parents=True)


def test_two_launches_without_a_step_are_enough(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save(run, "fit", 3)  # of an earlier job
    begin_counting(run)
    first = count_launch(run)
    assert (str(first), first.why_not_again(0, 100)) == ("stopped before a new step was saved", "")
    save(run, "fit", 12)
    second = count_launch(run)
    assert (str(second), second.idle) == ("stopped and saved (stage fit at step 12)", 0), "the count begins anew"
    assert count_launch(run).why_not_again(2, 100) == ""
    last = count_launch(run)
    assert "the time limit is too short for start-up" in last.why_not_again(3, 100) and last.needs_time


def test_a_stage_that_ended_is_progress_and_an_early_stop_is_no_idle_launch(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    begin_counting(run)
    for _ in range(3):  # it made way for other jobs
        assert count_launch(run, reached_limit=False).why_not_again(0, 100) == ""
    run.artifacts("dump").mkdir(parents=True)
    run.done("dump").touch()
    assert str(count_launch(run)) == "stopped and saved (stage dump done)"


def test_the_number_of_requeues_is_bounded(tmp_path: Path) -> None:
    begin_counting(RunDir(tmp_path))
    stopped = count_launch(RunDir(tmp_path))
    assert stopped.why_not_again(4, 5) == ""
    assert stopped.why_not_again(5, 5) == "it was queued again as often as --max-requeues allows, 5 times"
    assert not stopped.needs_time
