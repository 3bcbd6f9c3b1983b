"""A recipe whose validations are given: `SCORES` has them by the number of steps that are done. A line of the score
`wait` takes long, and checks for a stop."""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from samestep import Bench, Config, Fit, Recipe, Stage, Tick
from train.session.ending import loss, points


class Scripted(Fit):
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        super().__init__(bench.learner(nn.Linear(1, 1)), bench.feed(points(40)), loss)

    def validate(self, tick: Tick) -> dict[str, float]:
        score = json.loads(os.environ["SCORES"])[str(tick.step + 1)]
        if score == "wait":
            Path("waiting").touch()
            for _ in range(300):
                time.sleep(0.1)
                self.bench.check_stop()
        return {"val/score": torch.nan if score == "nan" else score}


recipe = Recipe(
    config=Config,
    stages=lambda config: [Stage("fit", Scripted, validate=Scripted.validate, best=("val/score", "max"))],
    presets={"verify": {"max_steps": 4, "global_batch_size": 10, "batch_size": 3, "validate_every": 2}},
)
