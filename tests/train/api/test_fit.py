"""The task most recipes use: it fits, and its validation counts every row once at any world size."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from samestep.data.feed import Feed
from samestep.data.loading import Batch
from samestep.data.order import VALIDATION_EPOCH, Sequential, Shuffled
from samestep.train.api.fit import Fit, evaluate
from samestep.train.record.progress import Tick
from samestep.world.world import World
from toys import ByHand, Case, Net, Points, close, feed_of, learner_of, made, on_ranks, rate, weights_of


def count(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"], "never": batch["tokens"] * 0}


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)}


def measure(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    assert not module.training
    assert not torch.is_grad_enabled()
    assert bool((batch["ids"][:, 0] == VALIDATION_EPOCH).all()), "noise keyed by the epoch is fixed in validation"
    error = loss(module, batch)["error"]
    error = torch.where(batch["live"], error, float("nan"))  # what a filler row gives must not matter
    return {"error": error, "tokens": error * batch["tokens"], "never": error}


def validation_feed(world: World, size: int, batch: int, micro: int) -> Feed:
    order = Sequential(size, batch, epoch=VALIDATION_EPOCH)
    return Feed(Points(size), order, world, micro_rows=micro, length=order.steps_per_epoch, count=count)


def by_hand(module: nn.Module, size: int) -> dict[str, float]:
    points = Points(size)
    with torch.no_grad():
        error = (module(points.x, points.tokens) - points.y).square().sum(1)
    weighted = (error * points.tokens).sum() / points.tokens.sum()
    return {"error": float(error.mean()), "tokens": float(weighted)}


def validation_counts_every_row_once(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    wanted: Mapping[str, float] = {}
    for size, batch, micro in [(23, 8, 2), (23, 23, 1), (7, 2, 1), (7, 100, 3)]:
        feed = validation_feed(world, size, batch, micro)
        wanted = by_hand(made(Net), size)
        for _ in range(2):  # a feed can be gone through again
            metrics = evaluate(learner, feed, measure)
            assert metrics == {name: pytest.approx(value, rel=1e-12) for name, value in wanted.items()}
            assert world.gather(metrics) == [metrics] * world.size, "to the bit on all ranks"


def it_fits_and_validates(world: World, strategy: str) -> None:
    rows, order, hand = Points(20), Shuffled(20, 8, seed=3), ByHand(made(Net))
    task = Fit(
        learner_of(made(Net), world, strategy),
        feed_of(rows, world, 8, 2, steps=5),
        loss,
        validation=validation_feed(world, 7, 4, 2),
        measure=measure,
        derive=lambda metrics: {"root": metrics["error"] ** 0.5},
    )
    assert task.length == 5
    assert list(task.state) == ["model"]
    for step in range(5):
        hand.update(loss(hand.module, rows.rows(order.ids(step)[:, 1]))["error"].mean(), rate(step))
        task.step(Tick(step, 0, False))
        assert task.learner._parallel.inner.training
        metrics = task.validate(Tick(step, 0, False))
        assert metrics == {"val/root": pytest.approx(by_hand(hand.module, 7)["error"] ** 0.5, rel=1e-10)}
    close(weights_of(task.learner), hand.module.state_dict())


def without_validation_there_is_none(world: World, strategy: str) -> None:
    task = Fit(learner_of(made(Net), world, strategy), feed_of(Points(8), world, 8, 2, steps=1), loss)
    assert task.validate(Tick(0, 0, True)) == {}


CASES: list[Case] = [validation_counts_every_row_once, it_fits_and_validates, without_validation_there_is_none]

test_on_ranks = on_ranks(CASES)
