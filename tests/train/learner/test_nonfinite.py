"""The guard that counts steps without a finite gradient."""

import numpy as np
import pytest
import torch

from samestep.core.errors import RunFailed
from samestep.data.feed import MicroBatches
from samestep.train.learner.nonfinite import FiniteGuard

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


def step_of(step: int, rows: int = 2) -> MicroBatches:
    ids = np.stack([np.full(rows, 4), np.arange(rows) + 100 * step], axis=1)
    return MicroBatches(step, [], {"rows": float(rows)}, ids, [])


def guard(limit: int = 2) -> FiniteGuard:
    return FiniteGuard(torch.device("cpu"), "model", limit)


def test_good_steps_in_between_start_the_count_again() -> None:
    counted = guard(2)
    for step in range(20):
        counted.add(BAD if step % 2 else GOOD, step_of(step))
    counted.check()


def test_a_count_is_read_one_step_later() -> None:
    counted = guard(2)
    counted.add(BAD, step_of(0))
    counted.add(BAD, step_of(1))
    with pytest.raises(RunFailed, match="'model' was not finite for 2 steps in a row, the last at step 1"):
        counted.add(GOOD, step_of(2))


def test_a_count_is_read_once() -> None:
    counted = guard(1)
    counted.add(BAD, step_of(3))
    with pytest.raises(RunFailed):
        counted.check()
    counted.check()


@pytest.mark.parametrize(
    ("rows", "text"), [(2, r"300 \(epoch 4\), 301 \(epoch 4\);"), (11, r"307 \(epoch 4\) and 3 more;")]
)
def test_the_samples_are_named(rows: int, text: str) -> None:
    counted = guard(1)
    counted.add(BAD, step_of(3, rows))
    with pytest.raises(RunFailed, match=text):
        counted.check()


def test_the_count_goes_on_from_a_state_that_is_a_copy() -> None:
    first = guard(3)
    first.add(BAD, step_of(0))
    first.add(BAD, step_of(1))
    second = guard(3)
    second.load_state_dict(first.state_dict())
    first.add(GOOD, step_of(2))
    second.add(BAD, step_of(2))
    with pytest.raises(RunFailed, match="3 steps in a row"):
        second.check()


def test_a_loaded_state_forgets_pending_counts() -> None:
    counted, fresh = guard(1), guard(1)
    counted.add(BAD, step_of(0))
    counted.load_state_dict(fresh.state_dict())
    counted.check()
