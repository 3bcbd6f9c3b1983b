"""A first launch that ends by a mistake before its first step leaves nothing under the run's name."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)
RECIPE = '''
import os
from dataclasses import dataclass

import torch
from torch import nn

from samestep import Config, Fit, Recipe, Stage, UserError


@dataclass(frozen=True)
class Line(Config):
    writes: bool = False
    """Whether a stage comes first that makes something."""
    wrong_at: int = -1
    """The step at which the data is wrong."""
    wrong_rank: int = 0
    """The rank that sees it."""


class Checked(Fit):
    def step(self, tick):
        if tick.step == self.wrong_at:
            raise UserError("row 7 has no label; add one")
        return super().step(tick)


def build(bench):
    rows = [{"x": torch.tensor([i / 9]), "y": torch.tensor([i / 3])} for i in range(9)]
    fit = Checked(bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss)
    fit.wrong_at = bench.config.wrong_at if bench.world.rank == bench.config.wrong_rank else -1
    return fit


def loss(model, batch):
    return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}


class Write:
    """A stage that makes something for the next one."""

    def __init__(self, bench):
        self.length, self.state, self.bench = 1, {}, bench

    def step(self, tick):
        with self.bench.write_artifact("table.txt") as path:
            path.write_text("made")
        return {}


recipe = Recipe(Line, lambda config: [Stage("write", Write), Stage("fit", build)][not config.writes :])
'''
ARGS = ["train", "line.py", "--name", "a", "--max_steps", "4", "--global_batch_size", "3", "--no-log.tensorboard"]
RUN = Path("runs/a")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    Path("line.py").write_text(RECIPE)
    return shell


def refused(shell: Shell, *args: str, ranks: int) -> None:
    codes, output = shell(*ARGS, *args, ranks=ranks)
    assert codes == [2] * ranks, output
    assert "Traceback" not in output and len([x for x in output.splitlines() if x.startswith("samestep: ")]) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_that_do_not_fit_do_not_take_the_name(shell: Shell, ranks: int) -> None:
    torch.save({"other.weight": torch.zeros(3)}, "weights.pt")
    refused(shell, "--init_from", "weights.pt", ranks=ranks)
    assert list(Path("runs").iterdir()) == []
    assert shell(*ARGS, ranks=ranks)[0] == [0] * ranks, "the same name with the mistake corrected"


@pytest.mark.parametrize("wrong_rank", [0, 1])
def test_a_mistake_in_the_first_step_does_not_take_the_name(shell: Shell, wrong_rank: int) -> None:
    refused(shell, "--wrong_at", "0", "--wrong_rank", str(wrong_rank), ranks=2)
    assert list(Path("runs").iterdir()) == []


def test_a_run_that_made_a_step_stays(shell: Shell) -> None:
    refused(shell, "--wrong_at", "1", ranks=1)
    assert read_json(RUN / "status.json")["kind"] == "user"
    assert (RUN / "config.json").exists()


def test_what_an_earlier_stage_made_stays(shell: Shell) -> None:
    refused(shell, "--writes", "--wrong_at", "0", ranks=1)
    assert next((RUN / "artifacts").rglob("table.txt")).read_text() == "made"
    assert shell("train", "--resume", "runs/a", "--recipe", "line.py")[0] == [2], "the same mistake"


def test_what_was_submitted_stays_and_so_does_an_older_run(shell: Shell) -> None:
    (RUN / "job").mkdir(parents=True)
    (RUN / "job" / "job.json").write_text("{}")
    refused(shell, "--wrong_at", "0", ranks=1)
    assert [path.name for path in RUN.iterdir()] == ["job"]
    assert shell(*ARGS)[0] == [0]
    torch.save({"other.weight": torch.zeros(3)}, "weights.pt")
    refused(shell, "--init_from", "weights.pt", ranks=1)
    assert read_json(RUN / "status.json")["status"] == "done"


def test_a_launcher_writes_nothing_under_the_name_either(shell: Shell) -> None:
    torch.save({"other.weight": torch.zeros(3)}, "weights.pt")
    command = [sys.executable, "-m", "samestep", *ARGS, "--nproc", "2", "--init_from", "weights.pt"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(Path("runs").iterdir()) == []
