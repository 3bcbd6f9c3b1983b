"""No bug: a metric of the whole validation set, a hook with a state that training depends on, a learning rate that
falls on a plateau, and a stage that validates its start and stops early."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, loss, net, points
from samestep import Bench, Every, Fit, Recipe, Stage, Tick, WholeSet
from samestep.train.logging.metrics import Metrics


def outputs(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"guess": module(batch["x"]), "truth": batch["y"][:, 0]}


def of_all_rows(rows: dict[str, Tensor]) -> dict[str, float]:
    """No mean over rows, and different where a row is missing, twice there, or at another place."""
    guess, truth = rows["guess"][:, 0], rows["truth"]
    correlation = torch.corrcoef(torch.stack([guess, truth]))[0, 1]
    return {
        "correlation": float(correlation),
        "length": float((guess[1:] - guess[:-1]).abs().sum()),
        "rows": len(truth),
    }


class Weight:
    """A hook whose state is the weight of the loss: smaller with every validation."""

    name = "weight"

    def __init__(self, bench: Bench) -> None:
        self._bench, self.value, self.calls = bench, 1.0, 0

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        if self._bench.validation:
            self.value *= 1 - 0.1 * self._bench.validation["val/length"]

    def count(self, tick: Tick) -> None:
        self.calls += 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": torch.tensor([self.value]), "calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.calls = float(state["value"]), state["calls"]


class Improving(Fit):
    """Fits with a weight that the hook changes."""

    def __init__(self, bench: Bench) -> None:
        self.weight = Weight(bench)
        super().__init__(
            bench.learner(net()),
            bench.feed(points(40)),
            loss,
            mix=lambda tick: {"error": self.weight.value},
            validation=bench.evaluation_feed(points(11)),
            whole_set=WholeSet(outputs, of_all_rows),
        )


recipe = Recipe(
    config=Small,
    stages=lambda config: [
        Stage(
            "fit",
            Improving,
            validate=Fit.validate,
            best=("val/error", "min"),
            hooks=lambda task, bench: [task.weight, Every(3, task.weight.count)],
        )
    ],
    presets={
        "verify": {
            **VERIFY,
            "max_steps": 14,
            "validate_every": 2,
            "validate_at_start": True,
            "schedule": "plateau",
            "plateau_patience": 2,
            "plateau_factor": 0.5,
            "min_improvement": 10.0,
            "early_stopping": 4,
            "best_at_end": True,
        }
    },
)
