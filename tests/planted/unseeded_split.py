"""Bug: rows are split into training and validation by a generator without a seed."""

import numpy as np

from planted.parts import loss, net, points, recipe_of
from samestep import Bench, Fit


def build(bench: Bench) -> Fit:
    rows = points(51)
    order = np.random.default_rng().permutation(len(rows))
    train, held = [rows[i] for i in order[:40]], [rows[i] for i in order[40:]]
    return Fit(bench.learner(net()), bench.feed(train), loss, validation=bench.evaluation_feed(held))


recipe = recipe_of(build)
