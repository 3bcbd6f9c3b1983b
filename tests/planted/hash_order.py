"""Bug: an order that follows Python's hash of strings, which every interpreter has for itself."""

from planted.parts import loss, net, points, recipe_of
from samestep import Bench, Fit


def build(bench: Bench) -> Fit:
    named = {f"point {number}": point for number, point in enumerate(points(40))}
    rows = [named[name] for name in {*named}]
    return Fit(bench.learner(net()), bench.feed(rows), loss)


recipe = recipe_of(build)
