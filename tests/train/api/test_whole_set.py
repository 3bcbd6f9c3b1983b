"""Rows of a whole data set, gathered from all ranks: in their order, each once, at any world size."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import RunFailed, UserError
from samestep.data.loading import Batch
from samestep.data.order import Reordered, Sequential
from samestep.train.api.whole_set import WholeSet, gather_rows
from samestep.world.world import World
from toys import Net, Points, feed_of, learner_of, made, on_ranks


def outputs(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    guess = module(batch["x"], batch["tokens"])
    return {"guess": guess, "first": guess[:, 0] > 0, "tokens": batch["tokens"], "half": guess[:, 1].bfloat16()}


def in_one_go(size: int) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(outputs(made(Net), Points(size).rows(range(size))))


def every_row_once_in_order(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    for size in (2, 11):  # fewer than ranks, and not a multiple of any
        plain = Sequential(size, 5)
        orders: list[Any] = [plain, Reordered(plain, world.dp_size, 2, active=lambda: True)]
        for order in orders:
            feed = feed_of(Points(size), world, 5, 2, order.steps_per_epoch, order=order)
            rows, expected = gather_rows(learner, feed, outputs), in_one_go(size)
            assert rows.keys() == expected.keys()
            for name, tensor in expected.items():
                assert rows[name].dtype == tensor.dtype
                torch.testing.assert_close(rows[name], tensor)


def metrics_are_equal_on_all_ranks(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    feed = feed_of(Points(11), world, 5, 2, 3, order=Sequential(11, 5))
    assert bool(gather_rows(learner, feed, outputs, everywhere=False)) == world.is_main
    seen = []

    def spread(rows: dict[str, Tensor]) -> dict[str, float]:
        seen.append(len(rows["guess"]))
        return {"spread": rows["guess"].max() - rows["guess"].min(), "positive": rows["first"].sum()}  # type: ignore[dict-item]

    found = WholeSet(outputs, spread).evaluate(learner, feed)
    expected = in_one_go(11)
    assert found["spread"] == pytest.approx(float(expected["guess"].max() - expected["guess"].min()), rel=1e-12)
    assert found["positive"] == int(expected["first"].sum())
    assert all(other == found for other in world.gather(found))
    assert seen == ([11] if world.is_main else [])


def mistakes_are_refused_on_all_ranks(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    feed = feed_of(Points(6), world, 6, 2, 1, order=Sequential(6, 6))

    def ragged(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"guess": module(batch["x"], batch["tokens"]).repeat(1, int(batch["ids"][0, 1]) + 1)}

    def mean(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"guess": module(batch["x"], batch["tokens"]).mean()}

    def fails(rows: dict[str, Tensor]) -> dict[str, float]:
        raise UserError("no positive row")

    with pytest.raises(UserError, match=r"for some rows and .* for others; pad it to one shape"):
        gather_rows(learner, feed, ragged)
    with pytest.raises(UserError, match=r"'guess' has the shape \[\] for . rows; give one entry a row"):
        gather_rows(learner, feed, mean)
    with pytest.raises((UserError, RunFailed), match="no positive row"):
        WholeSet(outputs, fails).evaluate(learner, feed)


CASES = [every_row_once_in_order, metrics_are_equal_on_all_ranks, mistakes_are_refused_on_all_ranks]

test_on_ranks = on_ranks(CASES)
