"""What a machine and its users do to a run: full disks, two launches, stopped processes, jumping clocks, signals."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import run_checks, toy
from faults.fault_injection import SaveFault, fill_disk, train_with_fault, train_with_jumping_clock
from faults.fault_runs import LAUNCH_TIMEOUT, STEP_DELAY, FaultRuns, small_disk
from faults.trials import Trial, resume_and_check
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.world.agreement import MAX_DELAY

pytestmark = pytest.mark.timeout(900)


def must_resume(runs: FaultRuns, label: str, world: int = 2) -> None:
    trial = resume_and_check(runs, Trial("", label), world)
    assert not trial.problems, trial


def status(runs: FaultRuns, label: str) -> str:
    return read_json(RunDir(runs.path(label)).status)["status"]


@pytest.fixture
def small(runs: FaultRuns, tmp_path: Path) -> Iterator[FaultRuns]:
    """Runs on a disk of four megabytes; the output of the ranks goes to another disk."""
    runs.reference(2)
    with small_disk(tmp_path) as disk:
        yield FaultRuns(disk / "runs", printed=tmp_path / "printed", references=runs.references)


@pytest.mark.parametrize("phase", ["staged", "written", "reported"])
def test_a_disk_that_fills_up_during_a_save(small: FaultRuns, phase: str) -> None:
    fill_file = small.folder.parent / "fill_file"
    codes, output = small.run("full", 2, train_with_fault, SaveFault(6, phase, (0,), fill_file=str(fill_file)))
    assert None not in codes and all(codes), (codes, output)
    assert "No space left on device" in output
    fill_file.unlink()
    must_resume(small, "full")


def test_a_disk_that_is_full_from_the_start(small: FaultRuns) -> None:
    fill_file = small.folder.parent / "fill_file"
    fill_disk(fill_file)
    codes, output = small.run("full", 2)
    assert None not in codes and all(codes), (codes, output)
    assert "No space left on device" in output
    fill_file.unlink()
    must_resume(small, "full")


def test_two_launches_on_one_run_directory(runs: FaultRuns) -> None:
    first = runs.begin("twice", 2, step_delay=5 * STEP_DELAY)
    runs.wait_for("twice", 2, first, 2, 0.0)
    codes, output = runs.run("twice", 2)
    assert first.processes[0].is_alive(), "the first one must still be running"
    assert codes == [2, 2]
    assert "twice is in use by a live run" in output
    assert first.wait(LAUNCH_TIMEOUT) == [0, 0]
    assert run_checks.first_difference(runs.reference(2), runs.path("twice")) == ""
    assert not run_checks.leftovers(runs.path("twice"))


def test_a_rank_that_is_stopped_for_a_while(runs: FaultRuns) -> None:
    workers = runs.begin("stopped", 2, step_delay=STEP_DELAY)
    runs.wait_for("stopped", 2, workers, 3, 0.0)
    process = workers.processes[1].pid
    assert process
    os.kill(process, signal.SIGSTOP)
    before = runs.steps_done("stopped", 2)
    time.sleep(3)
    assert runs.steps_done("stopped", 2) <= before + 2, "no rank goes on without it"
    os.kill(process, signal.SIGCONT)
    assert workers.wait(LAUNCH_TIMEOUT) == [0, 0], workers.output(0)
    assert run_checks.first_difference(runs.reference(2), runs.path("stopped")) == ""


def test_a_rank_whose_data_raises(runs: FaultRuns) -> None:
    codes, output = runs.run("raises", 2, trouble="raise", at_rank=1)
    assert all(codes) and None not in codes, output
    assert "cannot be read" in output
    assert "rank 1" in output, "the rank is named"
    assert runs.remaining("raises") < toy.STEPS, "there was something to resume"
    must_resume(runs, "raises")


def test_nan_on_one_rank_is_skipped_by_all(runs: FaultRuns) -> None:
    codes, output = runs.run("nan-once", 2, trouble="nan_once", at_rank=1)
    assert codes == [0, 0], output
    hashes = [hashes_of(runs, "nan-once", rank) for rank in range(2)]
    assert hashes[0] == hashes[1]
    skipped = [step for step in range(1, toy.STEPS) if hashes[0][step] == hashes[0][step - 1]]
    assert skipped, "a step was skipped"
    assert set(skipped) <= set(range(5, 10)), "those of epoch 1"
    assert sum(row.get("skipped", 0) for row in run_checks.metric_rows(runs.path("nan-once"))) > 0


def hashes_of(runs: FaultRuns, label: str, rank: int) -> list[str]:
    lines = run_checks.evidence_lines(runs.path(label), 2, rank)
    return [line["hash"] for line in lines if line["kind"] == "update"]


def test_nan_forever_on_one_rank_ends_all(runs: FaultRuns) -> None:
    codes, output = runs.run("nan", 2, trouble="nan", at_rank=1)
    assert codes == [1, 1], output
    assert "was not finite for 5 steps in a row" in output


@pytest.mark.parametrize("phase", ["staged", "reported"])
def test_a_signal_during_a_save(runs: FaultRuns, phase: str) -> None:
    label = f"signal-{phase}"
    codes, output = runs.run(
        label, 2, train_with_fault, SaveFault(4, phase, (1,), signal.SIGTERM), step_delay=STEP_DELAY
    )
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert status(runs, label) == "preempted"
    assert 4 <= toy.STEPS - runs.remaining(label) < toy.STEPS
    assert not run_checks.leftovers(runs.path(label))
    must_resume(runs, label)


def test_a_signal_during_validation(runs: FaultRuns) -> None:
    # Steps this long: ranks exchange their requests after each of them; shorter steps share a message.
    codes, output = runs.run("validating", 2, step_delay=MAX_DELAY, trouble="sigterm_validating", at_rank=1)
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert 5 <= toy.STEPS - runs.remaining("validating") <= 7, "it stops soon, with a save"
    must_resume(runs, "validating")


def test_a_signal_before_the_first_step(runs: FaultRuns) -> None:
    codes, output = runs.run("building", 2, trouble="sigterm_building", at_rank=0)
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert status(runs, "building") == "preempted"
    must_resume(runs, "building")


def test_a_signal_at_the_very_start(runs: FaultRuns) -> None:
    """Before training handles signals: whatever the exit code, nothing is damaged and nothing hangs."""
    rng = random.Random(0)
    for number in range(3):
        workers = runs.begin("at-once", 2, step_delay=20 * STEP_DELAY)  # not at its end when the start is faster now
        time.sleep(rng.random() * runs.reference(2).ready)
        workers.signal(signal.SIGTERM)
        codes = workers.wait(LAUNCH_TIMEOUT)
        assert all(code in (-signal.SIGTERM, EXIT_PREEMPTED, 1) for code in codes), (number, codes, workers.output(0))
    must_resume(runs, "at-once")


def test_a_clock_that_jumps(runs: FaultRuns) -> None:
    codes, output = runs.run("clock", 2, train_with_jumping_clock, SaveFault(8, "pruned", (0,)))
    assert codes[0] == -signal.SIGKILL, output
    for number, found in enumerate(sorted(RunDir(runs.path("clock")).checkpoints("fit").iterdir())):
        os.utime(found, (1e9 - number * 1e6, 1e9 - number * 1e6))  # the newest looks oldest
    codes, output = runs.run("clock", 2, train_with_jumping_clock, None)
    assert codes == [0, 0], output
    assert run_checks.first_difference(runs.reference(2), runs.path("clock")) == ""
    paths = (runs.path("clock"), runs.reference(2).path)
    kept, expected = ([c.step for c in find_checkpoints(RunDir(path).checkpoints("fit"))] for path in paths)
    assert kept == expected
