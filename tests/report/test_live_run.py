"""A run that is read again and again while it trains."""

import json
import math
import time
from itertools import pairwise
from pathlib import Path

import pytest

from report.made_runs import START, lines, make_run
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.report import live_run
from samestep.report.live_run import LiveRun


def empty_run(folder: Path) -> RunDir:
    run = make_run(folder, "live-1", steps=0)
    run.status.write_text(json.dumps({"status": "running", "stage": "fit", "step": 0, "steps": 100}))
    return run


def add(run: RunDir, text: str) -> None:
    with open(run.metrics, "a") as file:
        file.write(text)


def row(step: int, **values: float) -> str:
    return json.dumps({"stage": "fit", "step": step, "epoch": 0, **values}) + "\n"


def test_only_whole_new_rows_are_added(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    live = LiveRun(run)
    assert live.curves == {}
    whole = row(1, loss=3.0) + row(2, loss=2.0)
    for letter in whole:  # as a slow disk shows it
        add(run, letter)
        live.read()
    assert live.curves["fit"]["loss"].points == [(1.0, 3.0), (2.0, 2.0)]
    add(run, "no json\n" + row(3, loss=1.0, lr=0.1))
    live.read()
    found = {name: curve.points for name, curve in live.curves["fit"].items()}
    assert found == {"loss": [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], "lr": [(3.0, 0.1)]}
    assert live.step == 3


def test_rows_that_a_resume_cuts_off_are_gone(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    add(run, "".join(row(step, loss=float(step)) for step in range(1, 9)))
    live = LiveRun(run)
    rows = JsonLines(run.metrics)
    rows.keep(lambda kept: kept["step"] <= 4)
    rows.append({"stage": "fit", "step": 5, "epoch": 0, "loss": 50.0})
    live.read()
    assert live.curves["fit"]["loss"].points == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0), (5.0, 50.0)]


def test_a_long_curve_keeps_its_shape_in_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "MOST_POINTS", 100)
    monkeypatch.setattr(live_run, "AT_ONCE", 64)
    run = empty_run(tmp_path)
    live = LiveRun(run)
    for start in range(0, 3000, 500):
        add(run, "".join(row(step, loss=float(step)) for step in range(start, start + 500)))
        live.read()
    curve = live.curves["fit"]["loss"]
    steps, values = zip(*curve.points)
    assert 50 <= len(steps) <= 100 and steps == values and curve.last == 2999
    assert all(0 < after - before <= 64 for before, after in pairwise(steps)) and steps[0] < 32


def test_a_value_that_is_no_number_takes_its_neighbours_not_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "MOST_POINTS", 2)
    monkeypatch.setattr(live_run, "AT_ONCE", 8)
    run = empty_run(tmp_path)
    add(run, "".join(row(step, loss=math.nan if step % 4 == 0 else 1.0) for step in range(8)))
    assert LiveRun(run).curves["fit"]["loss"].points == [(1.5, 1.0), (5.5, 1.0)]


def test_the_time_left_is_that_of_this_launch(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    now = time.time()
    ranks = {"stage": "fit", "step_seconds": [1.0], "data_seconds": [0.0], "memory": [1]}
    slow = [{"time": now - 9000 + 100 * step, "step": step, **ranks} for step in range(20)]
    fast = [{"time": now - 100 + 2 * step, "step": 20 + step, **ranks} for step in range(1, 31)]
    events = [{"time": START, "kind": "launch", "world": 1}, {"time": now - 100, "kind": "launch", "world": 1}]
    lines(run.events, events)
    lines(run.rank_speeds, slow + fast)
    run.status.write_text(json.dumps({"status": "running", "stage": "fit", "step": 50, "steps": 100}))
    live = LiveRun(run)
    assert live.seconds_left is not None and math.isclose(live.seconds_left, 2 * 50, rel_tol=1e-6)
    lines(run.events, [*events, {"time": now + 1, "kind": "launch", "world": 1}])
    live.read()
    assert live.seconds_left is None


def test_what_is_drawn_first_is_what_the_run_is_judged_by(tmp_path: Path) -> None:
    live = LiveRun(make_run(tmp_path))
    assert live.chosen(4) == ["val/nll", "loss", "lr", "rows/s"]
    assert live.chosen(1) == ["val/nll"]


def test_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    live = LiveRun(run)
    live.read()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before
