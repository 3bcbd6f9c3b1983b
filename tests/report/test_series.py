"""Curves as arrays: complete, in order, and thinned without losing a peak."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report.made_runs import lines, make_run
from samestep.core.rundir import RunDir
from samestep.report.series import Curve, read_curves, read_rank_times
from samestep.train.record.damaged_files import Reader


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=400),
    most=st.integers(10, 120),
)
def test_extremes_are_kept_when_a_curve_is_thinned(values: list[float], most: int) -> None:
    curve = Curve(np.arange(1, len(values) + 1), np.array(values, dtype=np.float64))
    thin = curve.thinned(most)
    assert len(thin.steps) <= max(most, 3)
    assert (np.diff(thin.steps) > 0).all()
    assert (thin.steps[0], thin.steps[-1]) == (curve.steps[0], curve.steps[-1])
    finite = curve.values[np.isfinite(curve.values)]
    if len(finite):
        kept = thin.values[np.isfinite(thin.values)]
        assert (kept.min(), kept.max()) == (finite.min(), finite.max())
    where = thin.steps - 1
    np.testing.assert_array_equal(thin.values, curve.values[where])


def test_curves_are_those_that_were_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    curves = read_curves(run, Reader(run.path))
    assert list(curves) == ["fit"]
    assert list(curves["fit"]) == ["loss", "lr", "rows/s", "val/nll"]
    assert curves["fit"]["val/nll"].steps.tolist() == [10, 20, 30, 40]
    assert curves["fit"]["val/nll"].values.tolist() == [0.2, 0.1, 2.0 / 30, 0.05]
    assert len(curves["fit"]["loss"].steps) == 20


def test_a_step_that_was_trained_twice_counts_once_with_its_later_value(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    rows = [(2, 1.0), (4, 2.0), (6, 3.0), (4, 2.5), (6, 3.5)]
    lines(run.metrics, [{"stage": "fit", "step": step, "epoch": 0, "loss": loss} for step, loss in rows])
    curve = read_curves(run, Reader(run.path))["fit"]["loss"]
    assert curve.steps.tolist() == [2, 4, 6]
    assert curve.values.tolist() == [1.0, 2.5, 3.5]


def test_what_is_no_number_is_a_gap_and_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    lines(run.metrics, [{"stage": "fit", "step": 1, "epoch": 0, "loss": "much"}])
    with open(run.metrics, "a") as file:
        file.write('{"stage": "fit", "step": 2, "epoch": 0, "loss": NaN}\n')
        file.write('{"stage": "fit", "st\n[1, 2]\n')
        file.write('{"stage": "fit", "step": 3, "epoch": 0, "loss": 0.5}\n{"stage": "fit", "step": 4, "ep')
    reader = Reader(run.path)
    curve = read_curves(run, reader)["fit"]["loss"]
    assert curve.steps.tolist() == [1, 2, 3]
    assert np.isnan(curve.values[:2]).all()
    assert curve.values[2] == 0.5
    assert "metrics.jsonl" in reader.damage


def test_times_of_ranks_say_what_a_step_went_into(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    (times,) = read_rank_times(run, Reader(run.path))
    assert times.ranks == 3
    parts = times.parts()
    assert parts["computing"].tolist() == pytest.approx([0.4, 0.2, 0.2])
    assert parts["waiting for other ranks"].tolist() == pytest.approx([0.0, 0.2, 0.2])


def test_another_number_of_ranks_and_rows_of_other_versions(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    row = {"time": 1790000100.0, "stage": "fit", "step": 42, "step_seconds": [0.4]}
    with open(run.rank_speeds, "a") as file:
        file.write(json.dumps({**row, "data_seconds": [0.1]}) + "\n")
        file.write(json.dumps({**row, "step": 44, "data_seconds": [0.1, 2]}) + "\n")
        file.write('{"time": "later", "stage": "fit"}\n')
    times = read_rank_times(run, Reader(run.path))
    assert [each.ranks for each in times] == [2, 1]
    assert "memory" not in times[1].columns
    assert times[1].parts()["getting data"].tolist() == [0.1]
