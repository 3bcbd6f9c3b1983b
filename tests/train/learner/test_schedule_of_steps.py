"""The learning rate follows the steps of the loop, however many updates each makes; a given rate is named as such."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor, nn

from samestep.core.json_files import JsonLines
from samestep.data.loading import Batch
from samestep.train.api.bench import Bench
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Config
from samestep.train.record.plan import Plan
from samestep.train.record.progress import Tick
from samestep.train.session.entry import train_with
from toys import Points, run_on_ranks


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


class Twice:
    """The judge is updated twice a step, from a batch each."""

    def __init__(self, bench: Bench) -> None:
        self.feed, self.more = bench.feed(Points(24)), bench.feed(Points(10))
        self.length = self.feed.length
        self.judge = bench.learner(nn.Linear(4, 2), name="judge")
        self.player = bench.learner(nn.Linear(4, 2), name="player", rate=lambda step: 0.5 / (1 + step))
        self.state = {"judge": self.judge, "player": self.player}

    def step(self, tick: Tick) -> Metrics:
        for number in range(2):
            metrics = self.judge.update(self.more[2 * tick.step + number], loss)
        return {**metrics, **self.player.update(self.feed[tick.step], loss)}


recipe = Recipe(Config, lambda config: [Stage("duel", Twice)])


@pytest.mark.parametrize("nproc", [1, 2])
def test_each_step_has_its_rate(tmp_path: Path, nproc: int) -> None:
    settings = {"global_batch_size": 8, "max_steps": 10, "learning_rate": 0.1, "warmup_steps": 2}
    config = {**settings, "name": "run", "out": str(tmp_path), "num_workers": 1, "distributed": {"device": "cpu"}}
    log = {"every": 1, "tensorboard": False}
    output = run_on_ranks(train_with, nproc, __name__, {**config, "log": log}, logs=tmp_path / "logs")
    rows = [row for row in JsonLines(tmp_path / "run" / "metrics.jsonl") if "judge/lr" in row]
    planned = Config(**settings)
    schedule = Plan.make(planned, nproc, 24).schedule(planned)
    assert [row["judge/lr"] for row in rows] == pytest.approx([schedule(step) for step in range(10)])
    assert rows[-1]["judge/lr"] > 0
    assert [row["player/lr"] for row in rows] == pytest.approx([0.5 / (1 + step) for step in range(10)])
    assert re.search(r"learning rate +0\.1, cosine, 2 warm-up steps", output)
    assert re.search(r"learning rate of player +given by the recipe: 0\.5 at first, 0\.05 at last", output)
