"""A slice of `make fuzz`, and whether its judge notices what it should."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import pytest

from fuzz import campaign, exhausted, start_signals
from fuzz.command import Result, call
from fuzz.real_command import Ended
from fuzz.setting_values import is_sensible
from fuzz.trial import ACCEPTED, BAD, REFUSED, SILENT, TRACEBACK, judged
from samestep.core.config import Bounds

pytestmark = pytest.mark.timeout(900)
SEED = 1
SLICE = {"settings": 60, "paths": 12, "run_files": 12, "exhausted": 1, "start_signals": 2}


def test_careless_input_gets_a_sentence(tmp_path: Path) -> None:
    found = list(campaign.trials(tmp_path, SLICE, SEED))
    assert len(found) == sum(SLICE.values())
    bad = [f"{trial.outcome}: {trial.label}\n{trial.detail}" for trial in found if trial.outcome in BAD]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("result", "is_right", "expected"),
    [
        (Result(2, "samestep: one sentence\n"), True, REFUSED),
        (Result(2, "reading\nsamestep: one sentence\n"), False, REFUSED),
        (Result(2, "samestep: one\nsamestep: two\n"), True, TRACEBACK),
        (Result(2, ""), True, TRACEBACK),
        (Result(1, "Traceback (most recent call last):\n"), True, TRACEBACK),
        (Result(-9, "hung"), True, TRACEBACK),
        (Result(1, "a checkpoint is damaged"), True, ACCEPTED),
        (Result(0, ""), True, ACCEPTED),
        (Result(0, "other weights"), False, SILENT),
    ],
)
def test_the_judge(result: Result, is_right: bool, expected: str) -> None:
    assert judged("group", "label", result, is_right=is_right).outcome == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(0, "done", "done"), ACCEPTED),
        (Ended(0, "", "running"), TRACEBACK),
        (Ended(0, "", ""), SILENT),
        (Ended(2, "samestep: raise ulimit -n\n", ""), REFUSED),
        (Ended(1, "samestep: the disk is full\n", "failed"), TRACEBACK),
        (Ended(1, "samestep: raise ulimit -n\nframe #3: x\n", "failed"), TRACEBACK),
        (Ended(-9, "samestep: raise ulimit -n\n", "failed"), TRACEBACK),
    ],
)
def test_the_judge_of_runs_that_lack_something(ended: Ended, expected: str) -> None:
    assert exhausted.judged("label", ended, "ulimit -n").outcome == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(75, "samestep: stopped by SIGINT before training began\n", ""), REFUSED),
        (Ended(75, "samestep: stopped by SIGINT before training began\n", "running"), TRACEBACK),
        (Ended(75, "samestep: stopping after this step, with a save\n", "preempted"), SILENT),
        (Ended(-2, "", ""), SILENT),
        (Ended(1, "Traceback (most recent call last)\n", ""), TRACEBACK),
        (Ended(0, "done", "done"), TRACEBACK),
    ],
)
def test_the_judge_of_signals_at_the_start(ended: Ended, expected: str) -> None:
    assert start_signals.judged("label", ended, signal.SIGINT).outcome == expected


def test_a_call_prints_and_ends_as_in_a_shell(tmp_path: Path) -> None:
    assert call(["fly"], tmp_path).is_refusal
    assert "samestep train RECIPE" in call(["--help"], tmp_path).output
    crashed = call([], tmp_path, lambda args: 1 // 0)
    assert crashed.has_crashed
    assert "ZeroDivisionError" in crashed.output
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    assert "PermissionError" in call([], tmp_path, lambda args: len((tmp_path / "secret").read_text())).output


def test_nonsense_is_told_from_sense() -> None:
    share = Annotated[float, Bounds(least=0, most=1)]
    assert is_sensible(share, "0", 0.0)
    assert not is_sensible(share, "nan", float("nan"))
    assert not is_sensible(share, "-1", -1.0)
    assert not is_sensible(share, "abc", 0.5)
    assert is_sensible(int | None, "null", None)
    assert not is_sensible(int, "null", None)
    assert not is_sensible(int, 10**23, 10**23)
    assert is_sensible(bool, "true", True)
    assert not is_sensible(bool, "abc", True)
    assert is_sensible(str, "a[/b]", "a[/b]")
    assert not is_sensible(str, "\ud800", "\ud800")
    assert not is_sensible(Literal["a", "b"], "c", "c")
