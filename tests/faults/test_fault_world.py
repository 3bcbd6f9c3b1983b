"""What a machine and its people do to a run: full disks, two launches, stopped processes, odd clocks, signals."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.inside import Blow, fill, train_in_odd_time, train_under
from faults.yard import LIMIT, NAP, Yard, small_disk

from faults import same, toy
from faults.trials import Trial, conclude
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.records import read_json
from samestep.core.rundir import RunDir
from samestep.world.agreement import MAX_DELAY

pytestmark = pytest.mark.timeout(120)


def must_resume(yard: Yard, label: str, world: int = 2) -> None:
    trial = conclude(yard, Trial("", label), world)
    assert not trial.problems, trial


def status(yard: Yard, label: str) -> str:
    return read_json(RunDir(yard.path(label)).status)["status"]


@pytest.fixture
def small(yard: Yard, tmp_path: Path) -> Iterator[Yard]:
    """A yard on a disk of four megabytes; what is printed goes elsewhere."""
    yard.reference(2)
    with small_disk(tmp_path) as disk:
        yield Yard(disk / "runs", printed=tmp_path / "printed", references=yard.references)


@pytest.mark.parametrize("phase", ["staged", "written", "reported"])
def test_a_disk_that_fills_up_during_a_save(small: Yard, phase: str) -> None:
    ballast = small.folder.parent / "ballast"
    codes, output = small.run("full", 2, train_under, Blow(6, phase, (0,), ballast=str(ballast)))
    assert None not in codes and all(codes), (codes, output)
    assert "No space left on device" in output
    ballast.unlink()
    must_resume(small, "full")


def test_a_disk_that_is_full_from_the_start(small: Yard) -> None:
    ballast = small.folder.parent / "ballast"
    fill(ballast)
    codes, output = small.run("full", 2)
    assert None not in codes and all(codes), (codes, output)
    assert "No space left on device" in output
    ballast.unlink()
    must_resume(small, "full")


def test_two_launches_on_one_run_directory(yard: Yard) -> None:
    first = yard.begin("twice", 2, nap=5 * NAP)
    yard.wait_for("twice", 2, first, 2, 0.0)
    codes, output = yard.run("twice", 2)
    assert first.processes[0].is_alive(), "the first one must be under way still"
    assert codes == [2, 2]
    assert "twice is in use by a live run" in output
    assert first.wait(LIMIT) == [0, 0]
    assert same.change(yard.reference(2), yard.path("twice")) == ""
    assert not same.leftovers(yard.path("twice"))


def test_a_rank_that_is_stopped_for_a_while(yard: Yard) -> None:
    workers = yard.begin("stopped", 2, nap=NAP)
    yard.wait_for("stopped", 2, workers, 3, 0.0)
    process = workers.processes[1].pid
    assert process
    os.kill(process, signal.SIGSTOP)
    before = yard.marks("stopped", 2)
    time.sleep(3)
    assert yard.marks("stopped", 2) <= before + 2, "nobody goes on without it"
    os.kill(process, signal.SIGCONT)
    assert workers.wait(LIMIT) == [0, 0], workers.output(0)
    assert same.change(yard.reference(2), yard.path("stopped")) == ""


def test_a_rank_whose_data_raises(yard: Yard) -> None:
    codes, output = yard.run("raises", 2, trouble="raise", at_rank=1)
    assert all(codes) and None not in codes, output
    assert "cannot be read" in output
    assert "rank 1" in output, "the rank is named"
    assert yard.remaining("raises") < toy.STEPS, "there was something to resume"
    must_resume(yard, "raises")


def test_nan_on_one_rank_is_skipped_by_all(yard: Yard) -> None:
    codes, output = yard.run("nan-once", 2, trouble="nan_once", at_rank=1)
    assert codes == [0, 0], output
    hashes = [hashes_of(yard, "nan-once", rank) for rank in range(2)]
    assert hashes[0] == hashes[1]
    skipped = [step for step in range(1, toy.STEPS) if hashes[0][step] == hashes[0][step - 1]]
    assert skipped, "a step was skipped"
    assert set(skipped) <= set(range(5, 10)), "those of epoch 1"
    assert sum(row.get("skipped", 0) for row in same.figures(yard.path("nan-once"))) > 0


def hashes_of(yard: Yard, label: str, rank: int) -> list[str]:
    lines = same.lines_of(yard.path(label), 2, rank)
    return [line["hash"] for line in lines if line["kind"] == "update"]


def test_nan_for_ever_on_one_rank_ends_all(yard: Yard) -> None:
    codes, output = yard.run("nan", 2, trouble="nan", at_rank=1)
    assert codes == [1, 1], output
    assert "was not finite for 5 steps in a row" in output


@pytest.mark.parametrize("phase", ["staged", "reported"])
def test_a_signal_during_a_save(yard: Yard, phase: str) -> None:
    label = f"signal-{phase}"
    codes, output = yard.run(label, 2, train_under, Blow(4, phase, (1,), signal.SIGTERM), nap=NAP)
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert status(yard, label) == "preempted"
    assert 4 <= toy.STEPS - yard.remaining(label) < toy.STEPS
    assert not same.leftovers(yard.path(label))
    must_resume(yard, label)


def test_a_signal_during_validation(yard: Yard) -> None:
    # At steps this long ranks exchange their wishes at every one; shorter ones share a message.
    codes, output = yard.run("validating", 2, nap=MAX_DELAY, trouble="sigterm_validating", at_rank=1)
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert 5 <= toy.STEPS - yard.remaining("validating") <= 7, "it stops soon, with a save"
    must_resume(yard, "validating")


def test_a_signal_before_the_first_step(yard: Yard) -> None:
    codes, output = yard.run("building", 2, trouble="sigterm_building", at_rank=0)
    assert codes == [EXIT_PREEMPTED] * 2, output
    assert status(yard, "building") == "preempted"
    must_resume(yard, "building")


def test_a_signal_at_the_very_start(yard: Yard) -> None:
    """Before training listens: whatever the exit code, nothing is damaged and nothing hangs."""
    chance = random.Random(0)
    for number in range(3):
        workers = yard.begin("at-once", 2)
        time.sleep(chance.random() * yard.reference(2).ready)
        workers.signal(signal.SIGTERM)
        codes = workers.wait(LIMIT)
        assert all(code in (-signal.SIGTERM, EXIT_PREEMPTED, 1) for code in codes), (number, codes, workers.output(0))
    must_resume(yard, "at-once")


def test_a_clock_that_jumps(yard: Yard) -> None:
    codes, output = yard.run("clock", 2, train_in_odd_time, Blow(8, "pruned", (0,)))
    assert codes[0] == -signal.SIGKILL, output
    for number, found in enumerate(sorted(RunDir(yard.path("clock")).checkpoints("fit").iterdir())):
        os.utime(found, (1e9 - number * 1e6, 1e9 - number * 1e6))  # the newest looks oldest
    codes, output = yard.run("clock", 2, train_in_odd_time, None)
    assert codes == [0, 0], output
    assert same.change(yard.reference(2), yard.path("clock")) == ""
    paths = (yard.path("clock"), yard.reference(2).path)
    kept, expected = ([c.step for c in find_checkpoints(RunDir(path).checkpoints("fit"))] for path in paths)
    assert kept == expected
