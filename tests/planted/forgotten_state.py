"""Bug: a running mean steers the loss but is not in the task's state, so a resumed run begins with none."""

from planted.parts import loss, net, points, recipe_of
from samestep import Bench, Fit, Tick, evaluate
from samestep.train.logging.metrics import Metrics


class Steered(Fit):
    baseline = 0.0

    def step(self, tick: Tick) -> Metrics:
        assert self.validation is not None
        now = evaluate(self.learner, self.validation, loss)["error"]
        self.baseline = 0.9 * self.baseline + 0.1 * now
        return self.learner.update(self.feed[tick.step], loss, mix={"error": 1.0 + self.baseline})


def build(bench: Bench) -> Steered:
    return Steered(bench.learner(net()), bench.feed(points(40)), loss, validation=bench.evaluation_feed(points(11)))


recipe = recipe_of(build)
