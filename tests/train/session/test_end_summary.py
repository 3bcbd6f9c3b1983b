"""What is printed when a run is done."""

import math
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Shell
from samestep.core.json_files import JsonLines, write_json
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Recipe, Stage, Verb
from samestep.train.record.config import Config
from samestep.train.session.end_summary import end_summary

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "sine.py")
FAULTY = str(Path(__file__).parents[2] / "cli" / "faulty.py")


def recipe_with(**verbs: Verb) -> Recipe:
    return Recipe(Config, lambda config: [], **verbs)


def run_with(rundir: RunDir, rows: list[dict[str, Any]]) -> RunDir:
    """A run that is done after 9 steps of the stage `fit`."""
    write_json(rundir.done("fit"), {"step": 9, "config": {}, "code": None})
    for row in rows:
        JsonLines(rundir.metrics).append({"stage": "fit", "epoch": 0, **row})
    return rundir


@pytest.mark.parametrize(("mode", "best"), [("min", "1.5 at step 4"), ("max", "3 at step 2")])
def test_the_best_is_the_first_of_the_finite_ones(tmp_path: Path, mode: str, best: str) -> None:
    values = {2: 3.0, 4: 1.5, 6: math.nan, 8: 1.5, 9: math.inf}
    rundir = run_with(RunDir(tmp_path), [{"step": step, "val/x": value} for step, value in values.items()])
    stage = Stage("fit", lambda bench: None, validate=lambda task, tick: {}, best=("val/x", mode))
    lines = end_summary(recipe_with(), rundir, [stage], [], 3.0)
    assert lines["stage fit"] == f"9 steps, best val/x {best}"


def test_the_speed_is_the_usual_one(tmp_path: Path) -> None:
    rundir = run_with(
        RunDir(tmp_path), [{"step": step, "rows/s": speed} for step, speed in [(3, 1.0), (6, 80), (9, 90)]]
    )
    lines = end_summary(recipe_with(), rundir, [Stage("fit", lambda bench: None)], [], 3.0)
    assert lines["stage fit"] == "9 steps, 80 rows/s", "the first one, with what only a first step does, counts little"


def test_only_what_the_recipe_has_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rundir, verb = run_with(RunDir(tmp_path / "runs" / "my run"), []), Verb(lambda trained, options, world: {})
    commands = end_summary(recipe_with(sample=verb), rundir, [], [], 3.0)["next"].splitlines()
    assert commands == ["samestep sample 'runs/my run'", "samestep export 'runs/my run' FOLDER"]
    assert "evaluate" in end_summary(recipe_with(evaluate=verb), rundir, [], [], 3.0)["next"]


def test_the_working_directory_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    rundir = run_with(RunDir(tmp_path / "run"), [])
    assert str(rundir.path) in end_summary(recipe_with(), rundir, [], [], 3.0)["files"]


def test_a_damaged_file_does_not_fail_a_run_that_is_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rundir = run_with(RunDir(tmp_path), [])
    rundir.metrics.write_text("nothing\n")
    lines = end_summary(recipe_with(), rundir, [Stage("fit", lambda bench: None)], [], 3.0)
    assert lines["stage fit"] == "9 steps"
    assert "metrics.jsonl is damaged" in caplog.text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_ends_with_what_was_trained(shell: Shell, ranks: int) -> None:
    args = ["--global_batch_size", "5", "--epochs", "2", "--name", "a", "--nan_rows", "1"]
    codes, output = shell("train", FAULTY, *args, ranks=ranks)
    assert codes == [0] * ranks, output
    lines = output.splitlines()
    end = next(number for number, line in enumerate(lines) if line.endswith(": done"))
    assert lines[end + 1].startswith("stage fit  ") and ", 2 skipped, " in lines[end + 1]
    assert lines[end + 4].split() == ["next", "samestep", "export", "runs/a", "FOLDER"]
    assert lines[-1] == f"done: {Path('runs/a').absolute()}"
    codes, output = shell("train", "--resume", "runs/a")
    assert codes == [0] and "(this launch; the run had 2)" in output
