"""Bug: a rank whose own rows have nothing to learn from returns early, and the others wait for it."""

from planted.parts import loss, net, points, recipe_of
from samestep import Bench, Fit, Tick
from samestep.train.logging.metrics import Metrics


class Hasty(Fit):
    def step(self, tick: Tick) -> Metrics:
        micros = self.feed[tick.step]
        if not any((batch["x"] > 0).any() for batch in micros.batches):
            return {}
        return self.learner.update(micros, self._loss)


def build(bench: Bench) -> Hasty:
    return Hasty(bench.learner(net()), bench.feed(points(40)), loss)


recipe = recipe_of(build)
