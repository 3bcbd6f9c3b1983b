"""How a rank ends that is stopped before its first step, or that may open no more files: its status says so."""

import signal
import time
from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

pytestmark = pytest.mark.timeout(300)
RECIPE = """
import os, time
from pathlib import Path

import torch
from torch import nn

from samestep import Config, Fit, Recipe, Stage

OPENED = []


class Opening(Fit):
    def step(self, tick):
        while os.environ.get("OPENS") and tick.step == 1:
            OPENED.append(open(os.devnull))
        return super().step(tick)


def loss(model, batch):
    return {"error": model(batch["x"]).square().sum(1)}


def build(bench):
    if os.environ.get("WAITS"):
        Path(f"built_{bench.world.rank}").touch()
        time.sleep(60)
    rows = [{"x": torch.tensor([i / 9])} for i in range(9)]
    return Opening(bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss)


recipe = Recipe(Config, lambda config: [Stage("fit", build)])
"""
ARGS = ("train", "own.py", "--name", "a", "--max_steps", "4", "--global_batch_size", "3", "--no-log.tensorboard")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    Path("own.py").write_text(RECIPE)
    return shell


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGHUP), (2, signal.SIGTERM)])
def test_a_stop_before_the_first_step_ends_at_once_and_claims_nothing(
    shell: Shell, ranks: int, number: signal.Signals
) -> None:
    workers = shell.start(*ARGS, ranks=ranks, env={"WAITS": "1"})
    end = time.monotonic() + 120
    while not all(Path(f"built_{rank}").exists() for rank in range(ranks)) and time.monotonic() < end:
        time.sleep(0.02)
    workers.signal(number)
    assert workers.wait(60) == [75] * ranks, "before the recipe has built anything"
    output, run = workers.output(0), RunDir(Path("runs/a"))
    assert f"samestep: stopped by {number.name} before the first step, so nothing was trained" in output
    assert "Traceback" not in output and "resume with" not in output and "with a save" not in output
    assert read_json(run.status) == {"status": "preempted", "reason": number.name, "saved": False}
    found = diagnose(collect_evidence(run))
    assert found.verdict == "preempted" and number.name in found.sentence and "with a save" not in found.sentence
    assert shell(*ARGS, ranks=ranks)[0] == [0] * ranks, "the same command trains"


def test_a_run_that_may_open_no_more_files_says_so_and_its_status_too(shell: Shell) -> None:
    codes, output = shell(*ARGS, env={"OPENS": "1"})
    assert codes == [1], output
    assert output.count("samestep: too many files are open") == 1 and "ulimit -n" in output
    assert "Traceback" not in output
    status = read_json(RunDir(Path("runs/a")).status)
    assert status["status"] == "failed" and "ulimit -n" in status["text"]
