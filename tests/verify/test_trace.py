"""Evidence is read back as it was recorded."""

from pathlib import Path

from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.verify.trace import SET_UP, RecordedLaunch, splice
from verify.synthetic import launch


def test_steps_are_read_by_rank_and_in_order() -> None:
    found = launch(2, steps=3, stages=("one", "two"))
    assert list(found.trace()) == [(stage, step) for stage in ("one", "two") for step in range(3)]
    assert [len(steps) for steps in found.trace().values()] == [2] * 6
    assert found.starts == {"one": 0, "two": 0}
    assert found.finished_steps() == 6


def test_a_half_written_line_of_a_killed_rank_is_left_out(tmp_path: Path) -> None:
    path = RunDir(tmp_path).evidence(1, 0)
    lines = JsonLines(path)
    lines.append({"kind": "start", "stage": "fit", "step": 0})
    lines.append({"kind": "returned", "stage": "fit", "step": 0})
    lines.close()
    path.write_text(path.read_text() + '{"kind": "step", "sta')
    step = RecordedLaunch.read(tmp_path, 1).ranks[0]["fit", 0]
    assert step.returned
    assert step.closing_line is None


def test_what_is_recorded_during_set_up_has_its_own_step() -> None:
    validation = {"kind": "validation", "stage": "fit", "step": 0, "ids": [], "metrics": {}}
    found = RecordedLaunch.from_lines([[validation, {"kind": "start", "stage": "fit", "step": 2}]])
    assert list(found.ranks[0]) == [("fit", SET_UP)]
    assert found.starts == {"fit": 2}


def test_a_resumed_launch_continues_where_it_started() -> None:
    killed, resumed = launch(2, steps=3), launch(3, start=2, steps=5)
    steps_of_run = splice(killed, resumed)
    assert list(steps_of_run) == [("fit", step) for step in range(5)]
    assert [len(steps) for steps in steps_of_run.values()] == [2, 2, 3, 3, 3]


def test_a_finished_stage_stays_as_the_killed_launch_left_it() -> None:
    killed, resumed = launch(2, steps=2, stages=("one", "two")), launch(1, steps=2, stages=("two",))
    assert [len(steps) for steps in splice(killed, resumed).values()] == [2, 2, 1, 1]
