"""A step whose gradient is not finite is skipped by all ranks alike; too many in a row end the run on all of them."""

import pytest
import torch

from samestep.core.errors import RunFailed
from samestep.data.feed import Feed
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    SETTINGS,
    Case,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_order,
    learner_of,
    made,
    moments_of,
    on_ranks,
    same_everywhere,
    weights_of,
)

BATCH = 4


class Broken(Points):
    """Row 2 of the given steps is not a number; it lies on one rank only."""

    def __init__(self, steps: int, *broken: int) -> None:
        super().__init__(steps * BATCH)
        for step in broken:
            self.x[step * BATCH + 2] = float("nan")


def feed_over(rows: Points, world: World) -> Feed:
    return feed_of(rows, world, BATCH, 1, steps=len(rows) // BATCH, order=in_order(rows, BATCH))


def all_ranks_skip(world: World, strategy: str) -> None:
    for clip in (0.0, 0.5):
        settings = OptimSettings(SETTINGS.betas, SETTINGS.eps, SETTINGS.weight_decay, clip)
        for broken in ((1,), (0,)):
            learner = learner_of(made(Net), world, strategy, settings=settings)
            feed, accumulator, all_steps = (
                feed_over(Broken(4, *broken), world),
                MetricAccumulator(world),
                MetricAccumulator(world),
            )
            losses = []
            for step in range(4):
                weights, moments = weights_of(learner), moments_of(learner)
                metrics = learner.update(feed[step], error)
                accumulator.add(metrics)
                all_steps.add(metrics)
                means = accumulator.read()
                assert all(p.grad is None for p in learner.parameters())
                if step not in broken:
                    assert means["skipped"] == 0
                    losses.append(means["loss"])
                    continue
                assert means["skipped"] == 1
                assert "loss" not in means
                assert "error" not in means
                close(weights_of(learner), weights, tolerance=0)
                close(moments_of(learner), moments, tolerance=0)
            learner.check_finite()
            means = all_steps.read()
            assert means["loss"] == pytest.approx(sum(losses) / 3), "a mean over what was not skipped"
            assert means["grad_norm"] > 0
            assert means["skipped"] == 0.25
            same_everywhere(world, weights_of(learner).values())
            same_everywhere(world, moments_of(learner).values())


def float32_skips_too(world: World, strategy: str) -> None:
    """There the optimizer divides by a factor that is not a number, and must still leave everything alone."""
    with default_dtype(torch.float32):
        learner, feed = learner_of(made(Net), world, strategy), feed_over(Broken(3, 1), world)
        learner.update(feed[0], error)
        weights, moments = weights_of(learner), moments_of(learner)
        learner.update(feed[1], error)
        close(weights_of(learner), weights, tolerance=0)
        close(moments_of(learner), moments, tolerance=0)
        learner.update(feed[2], error)
        assert all(bool(value.isfinite().all()) for value in weights_of(learner).values())


def too_many_end_the_run(world: World, strategy: str) -> None:
    feed = feed_over(Broken(8, 0, 2, 3, 4), world)
    learner = learner_of(made(Net), world, strategy, max_bad_steps=3, name="judge")
    for step in range(5):
        learner.update(feed[step], error)  # 0 was bad, 1 good, and whether 4 was bad is still pending
    ids = r"row 18 \(epoch 0\)"
    with pytest.raises(RunFailed, match=f"'judge' was not finite for 3 steps in a row, the last at step 5.*{ids}"):
        learner.update(feed[5], error)


def the_count_survives_a_save(world: World, strategy: str) -> None:
    feed = feed_over(Broken(4, 0, 1, 2), world)
    first = learner_of(made(Net), world, strategy, max_bad_steps=3)
    for step in range(2):
        first.update(feed[step], error)
    first.check_finite()
    second = learner_of(made(Net), world, strategy, max_bad_steps=3)
    second.load_state_dict(first.state_dict())
    second.update(feed[2], error)
    with pytest.raises(RunFailed, match="3 steps in a row, the last at step 3"):
        second.check_finite()


CASES: list[Case] = [all_ranks_skip, float32_skips_too, too_many_end_the_run, the_count_survives_a_save]

test_on_ranks = on_ranks(CASES)
