"""A run on streams is killed and goes on at another number of ranks: the same losses as a run that was not."""

from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.core.json_files import JsonLines
from train.resumed_line import ARGS

pytestmark = pytest.mark.timeout(300)
SOURCE = '''
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import IterableDataset

from samestep import Bench, Config, Fit, Recipe, Stage, stream


@dataclass(frozen=True)
class Line(Config):
    """Fit a line to rows that come one after the other."""

    split: bool = False
    """Whether the stream divides itself among the ranks."""


class Points(IterableDataset):
    def __init__(self, count, by=1, rank=0):
        self.count, self.by, self.rank = count, by, rank

    def __iter__(self):
        for n in range(self.rank, self.count, self.by):
            yield {"x": torch.tensor([n / 10]), "y": torch.tensor([n / 5])}


class Killed(Fit):
    def step(self, tick):
        if os.environ.get("KILLED_AT") == str(tick.step):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(tick)


def loss(module, batch):
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def build(bench: Bench) -> Fit:
    points = Points(23, bench.world.size, bench.world.rank) if bench.config.split else Points(23)
    feed = bench.feed(stream(points, buffer=6, rows=None if bench.config.split else 23))
    return Killed(bench.learner(nn.Linear(1, 1)), feed, loss, validation=bench.evaluation_feed(Points(11)))


recipe = Recipe(Line, lambda config: [Stage("fit", build, validate=Fit.validate)])
'''


def metrics(name: str, key: str) -> list[float]:
    return [row[key] for row in JsonLines(Path("runs") / name / "metrics.jsonl") if key in row]


def test_a_killed_run_goes_on_with_the_next_row(shell: Shell) -> None:
    (shell.folder / "line.py").write_text(SOURCE)
    killed = shell.start(*ARGS, "--num_workers", "2", ranks=2, env={"KILLED_AT": "5"})
    assert killed.wait(60) == [-9, -9], killed.output(0)
    resumed = shell("train", "--resume", "a", "--num_workers", "2", ranks=3)
    assert resumed[0] == [0, 0, 0], resumed[1]
    assert "rows are read again to find the place" in resumed[1]
    assert shell(*ARGS, "--name", "whole")[0] == [0]
    for key in ("loss", "val/error"):
        assert metrics("a", key) == pytest.approx(metrics("whole", key), rel=1e-5) and metrics("a", key)


def test_a_stream_that_divides_itself_by_rank_is_refused(shell: Shell) -> None:
    (shell.folder / "line.py").write_text(SOURCE)
    codes, output = shell(*ARGS, "--split", ranks=2)
    assert codes == [2, 2] and "Traceback" not in output
    assert "the training data of stage 'fit' differs between ranks: rank 1 reads other rows than rank 0" in output
