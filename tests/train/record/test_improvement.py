"""Counting validations without improvement, for early stopping and for a learning rate that falls on a plateau."""

from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.train.record.config import Checkpoints, Config
from samestep.train.record.improvement import Improvement, Patience, check_improvement_settings
from samestep.train.record.progress import Progress

BEST = ("val/f1", "max")


def improvement(best: tuple[str, str] = ("val/loss", "min"), **settings: Any) -> Improvement:
    return Improvement(Patience.of(Config(**settings), best))


def test_it_stops_after_so_many_validations_without_improvement() -> None:
    found = improvement(early_stopping=2)
    stops = []
    for value in (3.0, 2.0, 2.0, 1.5, 1.6, float("nan")):
        found.add(value)
        stops.append(found.stops)
    assert stops == [False, False, False, False, False, True]
    assert found.describe() == "val/loss has not improved for 2 validations"


def test_a_small_improvement_does_not_count_and_larger_may_be_better() -> None:
    found = improvement(BEST, min_improvement=0.1, early_stopping=9)
    for value in (0.5, 0.55, 0.59, 0.61):
        found.add(value)
    assert (found.best, found.waited) == (0.61, 0), "compared with the last value that counted"
    found.add(0.65)
    assert found.waited == 1


def test_nan_first_is_no_value() -> None:
    found = improvement(early_stopping=3)
    found.add(float("nan"))
    found.add(7.0)
    assert (found.best, found.waited) == (7.0, 0)


def test_the_rate_falls_again_and_again_but_not_below_the_floor() -> None:
    found = improvement(schedule="plateau", plateau_patience=2, plateau_factor=0.5, final_lr_ratio=0.2)
    falls = [found.add(1.0) for _ in range(9)]
    assert falls == [False, False, True, False, True, False, True, False, False]
    assert found.rate_factor == 0.2
    assert found.waited == 8, "early stopping goes on counting"
    assert improvement(plateau_patience=1).add(1.0) is False, "no other schedule falls"


def test_counts_survive_a_checkpoint() -> None:
    progress = Progress()
    progress.improvement = improvement(schedule="plateau", plateau_patience=1)
    for value in (1.0, 2.0, 3.0):
        progress.improvement.add(value)
    again = Progress()
    again.improvement = improvement(schedule="plateau", plateau_patience=1)
    again.load_state_dict(progress.state_dict())
    assert again.improvement == progress.improvement


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"early_stopping": -1}, "early_stopping must be a whole number of at least 0, not -1"),
        ({"min_improvement": -0.5}, "min_improvement must be a number of at least 0, not -0.5"),
        (
            {"schedule": "plateau", "plateau_factor": 2.0},
            "plateau_factor must be a number above 0 and below 1, not 2.0",
        ),
        ({"best_at_end": True, "checkpoint": Checkpoints(keep_best=0)}, "set checkpoint.keep_best=1"),
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_improvement_settings(Config(**settings), "fit", BEST, trains=True)


@pytest.mark.parametrize(
    "settings", [{"early_stopping": 1}, {"schedule": "plateau"}, {"best_at_end": True}], ids=lambda s: next(iter(s))
)
def test_a_stage_that_trains_needs_a_best_metric(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="needs a validation metric to follow, but stage 'fit' names none"):
        check_improvement_settings(Config(**settings), "fit", None, trains=True)
    check_improvement_settings(Config(**settings), "dump", None, trains=False)
