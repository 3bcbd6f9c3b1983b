"""How much may differ follows from the measured rounding, and a floor that is too high proves nothing."""

import math
import re
from typing import Any

import pytest

from samestep.verify.compare import compare
from samestep.verify.report import comparison_checks
from samestep.verify.rounding import measure_floor
from samestep.verify.tolerance import STRICT, CheckResult, Floor, ProofStatus
from samestep.verify.trace import Line
from samestep.verify.updates import RunNames
from verify.synthetic import Spoil, launch, nothing

NAMES = RunNames("1 rank", "2 ranks", "mean of means")
METRICS = [{"stage": "fit", "step": 3, "epoch": 0, "loss": 2.0}]


def measured(spoil: Spoil, loss: float = 2.0) -> tuple[Floor, CheckResult]:
    theirs: list[Any] = [{**METRICS[0], "loss": loss}]
    return measure_floor(launch().trace(), launch(spoil=spoil).trace(), (METRICS, theirs))


def losses_by(factor: float, **more: object) -> Spoil:
    """Every loss is off by this factor."""

    def spoil(rank: int, line: Line) -> None:
        if line["kind"] == "update":
            line["rows"]["error"] = [value * factor for value in line["rows"]["error"]]
            line.update(more)

    return spoil


def test_a_run_in_float64_is_compared_as_strictly_as_ever() -> None:
    floor, check = measured(losses_by(1 + 1e-15), loss=2.0 + 1e-15)
    assert check.result is ProofStatus.OK
    assert re.fullmatch(
        r"losses \d\.\de-1\d, gradients 0.0e\+00, validation 0.0e\+00, logged metrics \d\.\de-16, "
        "from the same batches in another order and scale",
        check.sentence,
    )
    assert [floor.tolerance(subject) for subject in ("losses", "gradients", "metrics")] == [1e-8] * 3
    assert floor.tie == pytest.approx(1e-6)


def test_ten_times_the_floor_of_a_subject_passes_and_no_less_than_a_step_of_float32() -> None:
    floor, check = measured(losses_by(1 + 1e-6))
    assert check.sentence.endswith("another order and scale; up to 1.0e-05 passes")
    assert floor.tolerance("losses") == pytest.approx(1e-5, rel=1e-3)
    assert floor.tolerance("validation") == pytest.approx(1.2e-6)
    assert floor.unverifiable == []


def test_a_floor_that_is_too_high_proves_nothing() -> None:
    floor, check = measured(losses_by(1.001))
    assert check.result is ProofStatus.UNVERIFIABLE
    assert re.search(r"error of row \(0, \d+\) in step \d changes by 1.0e-03 when only order and scale", check.sentence)
    assert re.search("candidates: .*arithmetic in float32 or less.*", check.sentence)
    assert "candidates: " in check.sentence
    assert floor.unverifiable == ["losses"]
    assert floor.tolerance("losses") == math.inf
    assert floor.tolerance("gradients") < 1e-4


def test_a_change_in_the_first_update_is_mentioned() -> None:
    def later(rank: int, line: Line) -> None:
        if line["kind"] == "update" and line["step"]:
            losses_by(1.5)(rank, line)

    assert "losses by 3.3e-01 already in the first update" in measured(losses_by(1.5))[1].sentence
    assert "already in the first update" not in measured(later)[1].sentence


def test_subjects_without_a_floor_are_unverifiable_where_they_differ() -> None:
    floor = Floor({"losses": 1e-3, "gradients": 1e-16})
    far, near = (compare(launch().trace(), launch(2, each).trace(), NAMES, floor) for each in (losses_by(1.1), nothing))
    results = {check.name: check for check in comparison_checks([far, near], floor)}
    losses = results["row losses at 1, 2, 3 ranks"]
    assert losses.result is ProofStatus.UNVERIFIABLE
    assert losses.sentence.endswith("it proves nothing, since another order and scale alone change losses by 1.0e-03")
    assert results["gradients at 1, 2, 3 ranks"].result is ProofStatus.OK
    assert {check.result for check in comparison_checks([near], floor)} == {ProofStatus.OK}, (
        "an equal run is a proof at any floor"
    )


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"drew": ["torch"]}, "cannot be measured for losses, .*drawn from torch's own generator"),
        ({"batch_norms": ["norm"]}, "cannot be measured for losses, .*BatchNorm module 'norm'"),
    ],
)
def test_what_is_known_to_depend_on_more_than_rounding_has_no_floor(more: dict[str, object], cause: str) -> None:
    floor, check = measured(losses_by(1.1, **more))
    assert check.result is ProofStatus.UNKNOWN
    assert re.match(cause, check.sentence)
    assert floor.tolerance("losses") == 1e-8
    small, check = measured(losses_by(1 + 1e-7, **more))
    assert check.result is ProofStatus.OK
    assert small.tolerance("losses") == pytest.approx(1.2e-6)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"before": "another"}, "the initial parameters or buffers differ from process to process; candidates"),
        ({"data": [[1, 2]] * 7}, "the same samples hold other data from process to process; candidates"),
    ],
)
def test_a_run_that_is_another_one_measures_nothing(more: dict[str, object], text: str) -> None:
    floor, check = measured(losses_by(1.1, **more))
    assert floor is STRICT
    assert check.result is ProofStatus.UNKNOWN
    assert check.sentence.startswith(f"cannot be measured: {text}")
    assert measured(losses_by(1 + 1e-7, **more))[1] == check, "it is no rounding of float64"


def test_rows_that_an_earlier_stage_computed_may_differ_in_their_last_bits() -> None:
    floor, check = measured(losses_by(1 + 1e-15, data=[[1, 2]] * 7))
    assert check.result is ProofStatus.OK
    assert floor.tolerance("losses") == 1e-8
