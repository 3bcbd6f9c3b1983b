"""`samestep evaluate RUN` where a recipe has no such verb: what its validation gave, and nothing in the run changes."""

import json
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir

pytestmark = pytest.mark.timeout(300)
FOLDER = Path(__file__).parent
RECIPE = str(FOLDER / "ending.py")
UNVALIDATED = """
from samestep import Config, Fit, Recipe, Stage
from train.session.ending import Noted

recipe = Recipe(config=Config, stages=lambda config: [Stage("fit", Noted)])
"""


def train(shell: Shell, recipe: str, *settings: str, ranks: int = 1) -> None:
    codes, output = shell("train", recipe, "--preset", "verify", "name=a", *settings, ranks=ranks)
    assert codes == [0] * ranks, output


def files() -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in Path("runs").rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(("trained_on", "ranks"), [(1, 2), (2, 1)])
def test_the_metrics_are_those_that_training_logged(shell: Shell, trained_on: int, ranks: int) -> None:
    train(shell, RECIPE, "checkpoint.every_steps=2", ranks=trained_on)
    logged = {row["step"]: row["val/error"] for row in JsonLines(RunDir(Path("runs/a")).metrics) if "val/error" in row}
    before = files()
    for which, step in (("last", 8), ("best", 2)):
        codes, output = shell("evaluate", "a", "--which", which, "--out", f"{which}.json", ranks=ranks)
        assert codes == [0] * ranks, output
        found = read_json(Path(f"{which}.json"))
        assert (found["part"], found["stage"], found["step"]) == ("validation", "fit", step)
        assert found["val/error"] == pytest.approx(logged[step], rel=1e-6)
        assert "the validation part, which chose the best weights" in output
    assert files() == before


def test_a_failure_of_one_rank_is_told(shell: Shell) -> None:
    Path("repaired").touch()
    train(shell, str(FOLDER / "validated.py"), "mistake=on rank 1", "max_steps=8", ranks=2)
    Path("repaired").unlink()
    codes, output = shell("evaluate", "a", ranks=2)
    assert codes == [2, 2] and "the validation is broken" in output and "do not do the same" not in output, output


def test_other_settings_are_named(shell: Shell) -> None:
    train(shell, RECIPE)
    _, output = shell("evaluate", "a", "--seed", "2")
    assert "with other settings than the run's: seed" in output


def test_a_stage_that_does_not_validate(shell: Shell) -> None:
    Path("unvalidated.py").write_text(UNVALIDATED)
    codes, output = shell("train", "unvalidated.py", "max_steps=1", "batch_size=2", "name=a")
    assert codes == [0], output
    codes, output = shell("evaluate", "a")
    assert codes == [2]
    assert "Stage 'fit' of" in output and "does not validate" in output


def test_weights_outside_of_a_run_have_no_validation(shell: Shell) -> None:
    train(shell, RECIPE)
    torch.save({}, "weights.pt")
    assert shell("export", "a", "exported")[0] == [0]
    codes, output = shell("evaluate", "exported", "--recipe", RECIPE)
    assert codes == [2] and "Name the run, or a checkpoint in it" in output


def test_recipes_with_the_verb_have_a_switch(shell: Shell) -> None:
    short = ["max_steps=2", "log.samples=0", "log.tensorboard=false"]
    train(shell, "mdlm", *short)
    rows = [row for row in JsonLines(RunDir(Path("runs/a")).metrics) if "val/nll" in row]
    codes, output = shell("evaluate", "a", "--validation", "--out", "found.json")
    assert codes == [0], output
    assert json.loads(Path("found.json").read_text())["val/nll"] == pytest.approx(rows[-1]["val/nll"], rel=1e-9)
