"""Bug: a task trains a module of its own and forgets that the other ranks have other rows."""

import torch

from planted.parts import error, net, points, recipe_of
from samestep import Bench, Tick
from samestep.train.api.recipe import no_validation
from samestep.train.logging.metrics import Metrics


class OwnLoop:
    def __init__(self, bench: Bench) -> None:
        self.feed = bench.feed(points(40))
        self.length = self.feed.length
        self.net = net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.state = {"net": self.net}

    def step(self, tick: Tick) -> Metrics:
        micros = self.feed[tick.step]
        for batch in micros.batches:
            (torch.where(batch["live"], error(self.net, batch), 0.0).sum() / micros.weights["rows"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {}


recipe = recipe_of(OwnLoop, validate=no_validation)
