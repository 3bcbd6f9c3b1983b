"""Bug: the same mistake hidden in the weights alone; every row's loss is right."""

from dataclasses import replace

from planted.parts import loss, net, points, recipe_of
from samestep import Bench, Fit, Tick
from samestep.train.logging.metrics import Metrics


class Averaged(Fit):
    def step(self, tick: Tick) -> Metrics:
        micros = self.feed[tick.step]
        return self.learner.update(replace(micros, weights={"rows": 3.0 * len(micros.batches)}), self._loss)


def build(bench: Bench) -> Averaged:
    return Averaged(bench.learner(net()), bench.feed(points(40)), loss)


recipe = recipe_of(build)
