"""What a stage begins with is validated and kept: it is the best until something better comes."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.train.weights.run_checkpoints import choose_checkpoint
from system.hosts import wait_for

pytestmark = pytest.mark.timeout(300)
RECIPE = str(Path(__file__).parent / "ending.py")  # its best is the largest error
SCRIPTED = str(Path(__file__).parent / "scripted.py")
RUN = RunDir(Path("runs/a"))


def train(shell: Shell, *settings: str, ranks: int = 1) -> str:
    args = ["--preset", "verify", "name=a", "validate_at_start=true", *settings]
    codes, output = shell("train", RECIPE, *args, ranks=ranks)
    assert codes == [0] * ranks, output
    return output


def saved_steps() -> list[int]:
    return [found.step for found in find_checkpoints(RUN.checkpoints("fit"))]


def rows() -> list[tuple[int, float]]:
    """Step and value of every validation."""
    return [(row["step"], row["val/error"]) for row in JsonLines(RUN.metrics) if "val/error" in row]


def last_weights() -> dict[str, torch.Tensor]:
    return read_tensors(RUN.checkpoints("fit") / "step_00000008", "model/model")


def test_the_start_stays_the_best_where_nothing_is_better(shell: Shell) -> None:
    output = train(shell, "best_at_end=true", "early_stopping=2", "distributed.strategy=fsdp", ranks=2)
    assert "step 0  val/error" in output and "(best so far)" in output
    assert "stopped early after step 4: val/error has not improved for 2 validations" in output
    assert "ends with the state of step 0, the best by val/error" in output
    assert [step for step, _ in rows()] == [0, 2, 4]
    assert choose_checkpoint(RUN).name == "step_00000000"


def test_a_run_resumed_from_its_start_is_the_same_run(shell: Shell) -> None:
    train(shell)
    assert saved_steps()[0] == 0
    validated, weights = rows(), last_weights()
    for step in saved_steps()[1:]:
        shutil.rmtree(RUN.checkpoints("fit") / f"step_{step:08d}")
    RUN.done("fit").unlink()
    codes, output = shell("train", "--resume", "runs/a")
    assert codes == [0], output
    assert "step_00000000, step 0" in output
    assert rows() == validated, "the start is not validated again"
    assert all(torch.equal(weights[name], tensor) for name, tensor in last_weights().items())


def test_a_stage_that_starts_over_has_one_validation_of_its_start(shell: Shell) -> None:
    train(shell)
    validated = rows()
    shutil.rmtree(RUN.checkpoints("fit"))
    RUN.done("fit").unlink()
    codes, output = shell("train", "--resume", "runs/a", "start_over=true")
    assert codes == [0], output
    assert rows() == validated


def test_the_same_training_as_without(shell: Shell) -> None:
    train(shell)
    weights = last_weights()
    shutil.rmtree(RUN.path)
    train(shell, "validate_at_start=false")
    assert [step for step, _ in rows()] == [2, 4, 6, 8] and 0 not in saved_steps()
    assert all(torch.equal(weights[name], tensor) for name, tensor in last_weights().items())


def scripted(*settings: str, **scores: float | str) -> tuple[list[str], dict[str, str]]:
    """The command, and the variables that say what validation gives after so many steps."""
    args = ["train", SCRIPTED, "--preset", "verify", "name=a", "validate_at_start=true", *settings]
    found = {name.removeprefix("after_"): value for name, value in scores.items()}
    return args, {**os.environ, "SCORES": json.dumps(found)}


def test_what_is_better_than_the_start_is_saved_too(shell: Shell) -> None:
    args, env = scripted("checkpoint.every_epochs=0", after_0=0.70, after_2=0.75, after_4=0.69)
    codes, output = shell(*args, env=env)
    assert codes == [0], output
    assert choose_checkpoint(RUN, "best").name == "step_00000002"


def test_a_start_that_is_no_number_ends_nothing(shell: Shell) -> None:
    args, env = scripted("early_stopping=1", after_0="nan", after_2=0.5, after_4=0.6)
    codes, output = shell(*args, env=env)
    assert codes == [0], output
    assert saved_steps()[-1] == 4 and 0 not in saved_steps()


def test_a_stop_does_not_wait_for_the_validation_of_the_start(shell: Shell) -> None:
    args, env = scripted(after_0="wait")
    workers = shell.start(*args, ranks=2, env=env)
    wait_for(Path("waiting").exists, 60)
    workers.signal(signal.SIGTERM)
    assert workers.wait(20) == [75, 75], workers.output(0)
    assert "stopped before the first step: nothing new is saved" in workers.output(0)
    args, env = scripted(after_0=0.5, after_2=0.4, after_4=0.3)
    codes, output = shell(*args, ranks=2, env=env)
    assert codes == [0, 0], output
    assert choose_checkpoint(RUN, "best").name == "step_00000000"


def test_a_profile_begins_with_the_first_step(shell: Shell) -> None:
    products = []
    for at_start in ("true", "false"):
        train(shell, "profile=1-1", f"validate_at_start={at_start}")
        (trace,) = RUN.profile("fit").glob("*_rank_0.json")
        products.append(
            [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]].count("aten::addmm")
        )
        shutil.rmtree(RUN.path)
    assert products[0] == products[1] > 0


def test_a_stage_with_another_start_is_not_taken_over(shell: Shell) -> None:
    train(shell, "validate_at_start=false")
    codes, output = shell("train", RECIPE, "--preset", "verify", "name=b", "stages_from=a", "validate_at_start=true")
    assert codes == [0], output
    assert "its settings differ (validate_at_start)" in output


TWO_STAGES = """
from pathlib import Path

from samestep import Config, Recipe, Stage
from train.session.scripted import Scripted


def second(bench):
    task = Scripted(bench)
    Path("began").write_text(str(task.learner.module.weight.item()))
    return task


def stages(config):
    first = Stage("first", Scripted, validate=Scripted.validate, best=("val/score", "max"))
    return [first, Stage("second", second, start="first:best")]


settings = {"max_steps": 8, "global_batch_size": 10, "batch_size": 3, "validate_every": 2}
recipe = Recipe(config=Config, stages=stages, presets={"verify": settings})
"""


def test_a_later_stage_begins_with_the_best_validation_of_an_earlier_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved when it is found, not only where a save is due anyway."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    Path("two.py").write_text(TWO_STAGES)
    scores = json.dumps({"2": 1.0, "4": 3.0, "6": 2.0, "8": 2.5})
    codes, output = shell("train", "two.py", "--preset", "verify", "name=a", env={"SCORES": scores})
    assert codes == [0], output
    assert choose_checkpoint(RUN, "best", stage="first").name == "step_00000004"
    (best,) = read_tensors(RUN.checkpoints("first") / "step_00000004", "model/model")["weight"].flatten().tolist()
    assert float(Path("began").read_text()) == pytest.approx(best)
