"""A row of metrics that was started before a rank fails is written."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from samestep.core.json_files import JsonLines
from samestep.data.loading import Batch
from samestep.launching.local import start
from samestep.train.api.bench import Bench
from samestep.train.api.fit import Fit
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Config
from samestep.train.record.progress import Tick
from samestep.train.session.entry import train_with
from toys import PRELOAD, Points

FAILS = 7
"""The step in which a rank fails: the row of the first six was started one step before."""


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


class Failing(Fit):
    def step(self, tick: Tick) -> Metrics:
        if tick.step == FAILS - 1 and os.environ["TOY_FAILS"] in ("all", os.environ.get("RANK", "0")):
            raise RuntimeError("row 7 is unreadable")
        return super().step(tick)


def build(bench: Bench) -> Failing:
    return Failing(bench.learner(nn.Linear(4, 2)), bench.feed(Points(24)), loss)


recipe = Recipe(Config, lambda config: [Stage("fit", build)])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("nproc", "who"), [(1, "0"), (2, "0"), (2, "1"), (3, "2"), (2, "all")])
def test_it_is_there(tmp_path: Path, nproc: int, who: str) -> None:
    config: dict[str, Any] = {
        "name": "run",
        "out": str(tmp_path),
        "global_batch_size": 8,
        "epochs": 10,
        "distributed": {"device": "cpu"},
        "log": {"every": 3, "quiet": True, "tensorboard": False},
    }
    env = {"TOY_FAILS": who}
    workers = start(train_with, nproc, __name__, config, logs=tmp_path / "logs", env=env, preload=PRELOAD)
    codes = workers.wait(40)
    assert codes == [1] * nproc, workers.output(0)
    rows = list(JsonLines(tmp_path / "run" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [3, 6]
    assert all(row["loss"] > 0 for row in rows)
