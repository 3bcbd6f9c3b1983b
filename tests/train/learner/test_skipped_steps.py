"""Steps that train nothing: counted, said seldom, and a run that has too many of them ends."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from samestep.core.errors import RunFailed
from samestep.data.feed import MicroBatches
from samestep.train.learner.skipped_steps import SAY_SECONDS, SkippedSteps
from samestep.world.world import World
from toys import Points, feed_of, learner_of, on_ranks

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


def step_of(step: int, rows: int = 2) -> MicroBatches:
    ids = np.stack([np.full(rows, 4), np.arange(rows) + 100 * step], axis=1)
    return MicroBatches(step, [], {"rows": float(rows)}, ids, [(0, rows)])


class Steps(SkippedSteps):
    """Steps of rows with these losses; without any, they are finite."""

    def __init__(self, limit: int = 2) -> None:
        self.now = 0.0
        super().__init__(World.single(), "model", limit, clock=lambda: self.now)

    def step(self, step: int, bad: torch.Tensor, losses: Sequence[float] = (), rows: int = 2) -> None:
        values = torch.tensor(losses) if losses else torch.zeros(rows)
        self.add(step, bad, bad, step_of(step, len(values)), [{"error": values}])


def test_good_steps_in_between_start_the_count_again() -> None:
    counted = Steps(2)
    for step in range(20):
        counted.step(step, BAD if step % 2 else GOOD)
    counted.check()


def test_a_count_is_read_one_step_later() -> None:
    counted = Steps(2)
    counted.step(0, BAD)
    counted.step(1, BAD)
    with pytest.raises(RunFailed, match="'model' was not finite for 2 steps in a row, the last at step 2"):
        counted.step(2, GOOD)


def test_a_count_is_read_once() -> None:
    counted = Steps(1)
    counted.step(3, BAD)
    with pytest.raises(RunFailed):
        counted.check()
    counted.check()


@pytest.mark.parametrize(
    ("rows", "text"), [(2, r"300 \(epoch 4\), 301 \(epoch 4\);"), (11, r"307 \(epoch 4\) and 3 more;")]
)
def test_the_samples_are_named(rows: int, text: str) -> None:
    counted = Steps(1)
    counted.step(3, BAD, rows=rows)
    with pytest.raises(RunFailed, match=text):
        counted.check()


def test_the_count_goes_on_from_a_state_that_is_a_copy() -> None:
    first = Steps(3)
    first.step(0, BAD)
    first.step(1, BAD)
    second = Steps(3)
    second.load_state_dict(first.state_dict())
    first.step(2, GOOD)
    second.step(2, BAD)
    with pytest.raises(RunFailed, match="3 steps in a row"):
        second.check()


def test_a_loaded_state_forgets_pending_counts() -> None:
    counted, fresh = Steps(1), Steps(1)
    counted.step(0, BAD)
    counted.load_state_dict(fresh.state_dict())
    counted.check()


def test_the_rows_are_named_and_counted_and_said_seldom(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(limit=9)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            steps.step(step, BAD, [1.0, torch.nan, torch.inf])
        steps.step(3, GOOD, [1.0])
        steps.now += SAY_SECONDS
        steps.step(4, BAD)
        steps.check()
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "learner 'model': step 1 was skipped, with all 3 rows of its batch: the loss of 2 rows: 1 (epoch 4), "
        "2 (epoch 4) was not finite"
    )
    assert "step 5 was skipped" in second and "the loss of every row was finite, but not its gradient" in second
    assert second.endswith("(and 2 more steps since this was last said)")
    assert steps.summary() == (
        "learner 'model' skipped 4 steps whose gradient was not finite (6 rows had a loss that was not finite)"
    )
    resumed = Steps()
    resumed.load_state_dict(steps.state_dict())
    assert resumed.summary() == steps.summary()


def test_an_overflow_that_lowers_the_loss_scale_is_no_finding(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(limit=1)
    steps.add(0, BAD, GOOD, step_of(0), [{"error": torch.ones(2)}])
    steps.check()
    assert not steps.summary() and not caplog.records
    steps.add(1, BAD, GOOD, step_of(1), [{"error": torch.tensor([1.0, torch.nan])}])
    steps.check()
    assert steps.bad_rows == 1, "but a row whose loss is not finite is one, whatever the scale"


def rows_of_all_ranks_are_named(world: World, strategy: str) -> None:
    points = Points(8)
    points.x[[1, 6]] = torch.nan
    learner = learner_of(nn.Linear(4, 2).double(), world, strategy)
    feed = feed_of(points, world, 8, 2, 3)
    said: list[str] = []
    learner.skipped_steps._say = said.append  # type: ignore[method-assign]
    learner.update(feed[0], lambda module, batch: {"error": module(batch["x"]).square().sum(1)})
    learner.check_finite()
    assert world.gather(said) == [said] * world.size
    assert "the loss of 2 rows: " in said[0] and "1 (epoch 0)" in said[0] and "6 (epoch 0)" in said[0]
    counts = {"not_finite": 1, "bad_rows": 2, "uncounted": 0}
    assert counts.items() <= learner.skipped_steps.state_dict().items()


def a_batch_that_counts_nothing_is_said(world: World, strategy: str) -> None:
    learner = learner_of(nn.Linear(4, 2).double(), world, strategy)
    feed = feed_of(Points(8), world, 8, 2, 3, count=lambda batch: {"error": batch["tokens"] * 0})
    said: list[str] = []
    learner.skipped_steps._say = said.append  # type: ignore[method-assign]
    learner.update(feed[0], lambda module, batch: {"error": module(batch["x"]).square().sum(1)})
    assert said == ["step 1 trained nothing: all 8 rows of its batch have the weight 0 in 'error'"]
    assert learner.skipped_steps.summary() == (
        "learner 'model' trained nothing in 1 steps, whose rows all had the weight 0"
    )


CASES = [rows_of_all_ranks_are_named, a_batch_that_counts_nothing_is_said]

test_on_ranks = on_ranks(CASES)
