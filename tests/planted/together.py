"""No bug: a stage that writes an array while it learns and ends with its best state, and one that starts from that."""

from dataclasses import replace

from torch import Tensor

from planted.parts import VERIFY, Small, loss, net, points
from samestep import Bench, Fit, Metrics, Recipe, Stage, Tick


class Writing(Fit):
    """Also writes one row a step."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.learner(net()), bench.feed(points(40)), loss)
        self.rows, self.world = bench.array_artifact("norms", self.length, {"norm": ((), "float32")}), bench.world

    def step(self, tick: Tick) -> Metrics:
        metrics = super().step(tick)
        if self.world.is_main:
            self.rows.write([tick.step], {"norm": Tensor([float(tick.step)])})
        return metrics

    def worsening(self, tick: Tick) -> dict[str, float]:
        return {"val/error": float(tick.step)}


def go_on(bench: Bench) -> Fit:
    assert len(bench.read_array_artifact("norms", stage="first")) == 6
    return Fit(bench.learner(net()), bench.feed(points(40)), loss)


recipe = Recipe(
    config=Small,
    stages=lambda config: [
        Stage(
            "first",
            Writing,
            validate=Writing.worsening,
            best=("val/error", "min"),
            config=lambda c: replace(c, best_at_end=True, validate_every=2),
        ),
        Stage("second", go_on, start="first"),
    ],
    presets={"verify": VERIFY},
)
