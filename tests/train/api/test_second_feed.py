"""A stage may train on several data sets; the first one fixes how long it is."""

from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.logging.console import Screen
from samestep.train.record.config import Config
from samestep.world.world import World
from toys import Points


def bench(folder: Path, **settings: Any) -> Bench:
    return Bench(
        World.single(), Config(epochs=2, global_batch_size=8, **settings), RunDir(folder), "fit", Screen(False)
    )


def test_a_second_feed_of_another_length_has_its_own_epochs(tmp_path: Path) -> None:
    for _ in range(2):  # the second time as a resume
        made = bench(tmp_path)
        first, second = made.feed(Points(20)), made.feed(Points(7))
        assert first.length == second.length == 2 * 3
        assert made.known_plan is not None and made.known_plan.steps_per_epoch == 3
        assert [len(first[step].ids) for step in range(3)] == [8, 8, 4]
        assert sorted(second[1].ids[:, 1].tolist()) == list(range(7)), "an epoch a step"
        assert set(second[1].ids[:, 0].tolist()) == {1}


def test_the_first_feed_must_stay_as_long_as_it_was(tmp_path: Path) -> None:
    bench(tmp_path).feed(Points(20))
    with pytest.raises(UserError, match="started on 20 training samples but the data now has 7"):
        bench(tmp_path).feed(Points(7))


def test_data_that_is_read_after_the_stage_was_built_is_not_compared(tmp_path: Path) -> None:
    for size in (20, 30):
        made = bench(tmp_path)
        made.feed(Points(12))
        made.feeds.compares_data = False
        assert len(made.evaluation_feed(Points(size)).order.ids(0)) > 0
