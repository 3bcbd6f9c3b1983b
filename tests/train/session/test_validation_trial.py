"""Mistakes in validation are found before the first step, by a trial that leaves no trace; later ones lose nothing."""

import ast
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.checkpoint.loading import read_tensors
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir

pytestmark = pytest.mark.timeout(300)
RECIPE = str(Path(__file__).parent / "validated.py")
RUN = RunDir(Path("runs/a"))


def train(shell: Shell, mistake: str, *settings: str, ranks: int = 1, name: str = "a") -> tuple[list[int], str]:
    args = ["--preset", "verify", f"name={name}", f"mistake={mistake}", *settings]
    return shell("train", RECIPE, *args, ranks=ranks)


@pytest.mark.parametrize(
    ("mistake", "setting", "message"),
    [
        ("no val/", "seed=0", "best names 'error', but validation gave 'val/error'"),
        ("never", "seed=0", "best names 'val/f1', but validation gave 'val/error'"),
        ("no rows", "early_stopping=2", "gave no validation metrics, which early_stopping follows"),
        ("no rows", "schedule=plateau", "gave no validation metrics, which schedule=plateau follows"),
        ("no rows", "best_at_end=true", "gave no validation metrics, which best_at_end=true follows"),
    ],
)
def test_mistakes_are_refused_before_the_first_step(shell: Shell, mistake: str, setting: str, message: str) -> None:
    codes, output = train(shell, mistake, setting)
    assert codes == [2] and message in output, output
    assert not RUN.path.exists(), "nothing was trained"


def test_on_two_ranks_the_trial_leaves_no_trace(shell: Shell) -> None:
    """What the first real validation finds is what it would find without a trial."""
    codes, output = train(shell, "fillers", "evidence=true", ranks=2)
    assert codes == [0, 0], output
    found = [ast.literal_eval(line) for line in Path("found").read_text().splitlines()]
    real = [line for line in found if line[0] or line is found[3]]
    assert [line[0] for line in real] == [0, 1, 2], "validated three times, after as many that left nothing"
    assert found[0] == found[1] == found[2], "all trials begin alike"
    assert found[3][1:3] == found[0][1:3] and found[3][-1] is None
    assert "counts filler rows in 'val/rows'" in output
    kinds = [line["kind"] for line in JsonLines(RUN.evidence(2, 0))]
    assert kinds[:2] == ["start", "update"] and kinds.count("validation") == 3


def test_a_metric_that_is_another_one_on_each_rank_keeps_no_rank_waiting(shell: Shell) -> None:
    codes, output = train(shell, "seconds on rank 1", ranks=2)
    assert codes == [0, 0] and "filler" not in output, output


def test_metrics_that_one_batch_does_not_have_are_tried_on_all(shell: Shell) -> None:
    codes, output = train(shell, "two classes")
    assert codes == [0], output
    assert "val/auc 0.5" in output and "filler" not in output


@pytest.mark.parametrize(("mistake", "ranks"), [("later", 1), ("on rank 1", 2)])
def test_a_validation_that_fails_later_costs_no_step(shell: Shell, mistake: str, ranks: int) -> None:
    codes, output = train(shell, mistake, "checkpoint.every_epochs=0", ranks=ranks)
    assert codes == [2] * ranks and "the validation is broken" in output, output
    assert "validation after step 8 failed; the state of this step is saved" in output
    assert [path.name for path in RUN.checkpoints("fit").iterdir()] == ["step_00000008"]
    Path("repaired").touch()
    codes, output = shell("train", "--resume", "runs/a", ranks=ranks)
    assert codes == [0] * ranks, output
    codes, whole = train(shell, mistake, "checkpoint.every_epochs=0", ranks=ranks, name="whole")
    assert codes == [0] * ranks, whole
    validated, epochs = {}, {}
    for name, text in (("a", output), ("whole", whole)):
        run = RunDir(Path("runs") / name)
        validated[name] = [(row["step"], row["val/error"]) for row in JsonLines(run.metrics) if "val/error" in row]
        epochs[name] = [line for line in text.splitlines() if line.startswith(("epoch 2", "epoch 3"))]
    assert len(validated["a"]) == 3 and validated["a"] == validated["whole"]
    assert len(epochs["a"]) == 2 and epochs["a"] == epochs["whole"]
    first, second = (read_tensors(Path("runs") / name / "checkpoints/fit/step_00000012", "model") for name in epochs)
    trained = [name for name in first if not name.endswith("calls")]  # of the validation, which was done once more
    assert len(trained) > 4 and all(torch.equal(first[name], second[name]) for name in trained)
    assert read_json(RUN.status)["status"] == "done"
