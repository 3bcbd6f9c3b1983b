"""Runs side by side: settings that differ, metrics, and the first step at which they are not the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samestep.core.json_files import parse_json_lines
from samestep.core.pages.tables import Column, Table
from samestep.core.rundir import RunDir
from samestep.report.html_report import differing_settings
from samestep.report.run_report import RunReport
from samestep.report.shown import flat_settings

_NOT_THE_TRAINING = ("/s",)
"""Ends of the names of metrics that say how fast a run was, not what it computed."""
CLOSE = 1e-6
"""Metrics that are closer than this, relatively, are those of the same run: ranks add numbers in another order."""


@dataclass(frozen=True)
class RunComparison:
    """What differs between runs, the first of which is compared with each other one."""

    names: Sequence[str]
    settings: Sequence[Sequence[str]]
    """Name of a setting, and its value by run."""
    metrics: Sequence[tuple[str, str, Sequence[float | None]]]
    """Stage, metric, and the last value by run."""
    sentences: Sequence[str] = field(default_factory=list)

    def tables(self) -> list[Table]:
        """For people."""
        runs = [Column(name, is_number=True) for name in self.names]
        left = [Column("setting"), *(Column(name) for name in self.names)]
        rows = [[f"{stage}/{name}", *map(_shown, values)] for stage, name, values in self.metrics]
        found = [Table(left, self.settings, "settings that differ")] if self.settings else []
        return [*found, Table([Column("metric"), *runs], rows, "last values")] if rows else found

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "settings": {name: values for name, *values in self.settings},
            "metrics": {f"{stage}/{name}": list(values) for stage, name, values in self.metrics},
            "differences": list(self.sentences),
        }


def compare_runs(runs: Sequence[RunReport]) -> RunComparison:
    """The comparison of several runs."""
    flat = [dict(flat_settings(report.summary.settings)) for report in runs]
    sentences = [_first_difference(runs[0], other) for other in runs[1:]]
    names = [report.summary.name for report in runs]
    same = [] if differing_settings(flat) else ["no setting differs"]
    return RunComparison(names, differing_settings(flat), _last_values(runs), [*same, *sentences])


def _last_values(runs: Sequence[RunReport]) -> list[tuple[str, str, list[float | None]]]:
    pairs = dict.fromkeys((stage, name) for report in runs for stage in report.stages for name in report.curves[stage])
    return [(stage, name, [_last_value(report, stage, name) for report in runs]) for stage, name in pairs]


def _last_value(report: RunReport, stage: str, name: str) -> float | None:
    curve = report.curves.get(stage, {}).get(name)
    return None if curve is None else curve.last


def _first_difference(one: RunReport, other: RunReport) -> str:
    """Where two runs part, by their evidence if both have some, else by their metrics."""
    who = f"{one.summary.name} and {other.summary.name}"
    if (found := _first_difference_of_evidence(one.summary.rundir, other.summary.rundir)) is not None:
        return f"{who}: {found}"
    if _rows_of(one) != _rows_of(other):
        return f"{who}: metrics are means over log.every steps, which differs, so no step can be compared"
    first: tuple[int, str, str, float, float] | None = None
    compared = 0
    for stage in one.stages:
        for name, curve in one.curves[stage].items():
            theirs = other.curves.get(stage, {}).get(name)
            if theirs is None or name.endswith(_NOT_THE_TRAINING):
                continue
            steps, here, there = np.intersect1d(curve.steps, theirs.steps, return_indices=True)
            compared += len(steps)
            ours, others = curve.values[here], theirs.values[there]
            apart = ~np.isclose(ours, others, rtol=CLOSE, atol=0, equal_nan=True)
            if apart.any():
                at = int(apart.argmax())
                found_here = (int(steps[at]), stage, name, float(ours[at]), float(others[at]))
                first = min(first, found_here) if first and first[1] == stage else first or found_here
    if not compared:
        return f"{who}: they have no step with the same metrics"
    if first is None:
        return f"{who}: all metrics of the steps that both logged are the same to {CLOSE:g} ({compared:,} numbers)"
    step, stage, name, ours_value, their_value = first
    return f"{who}: {name} differs first at step {step:,} of stage {stage}: {ours_value:.9g} and {their_value:.9g}"


def _rows_of(report: RunReport) -> Any:
    """Steps that a row of metrics is the mean of."""
    return dict(flat_settings(report.summary.settings)).get("log.every")


def _first_difference_of_evidence(one: RunDir, other: RunDir) -> str | None:
    """By the hash that evidence has of every step's state; None where one has none."""
    ours, theirs = _hashes(one), _hashes(other)
    both = [key for key in ours if key in theirs]
    if not both:
        return None
    differing = [key for key in both if ours[key] != theirs[key]]
    if not differing:
        return f"the state after each of {len(both):,} steps is the same, bit for bit"
    stage, step = differing[0]
    return f"by their evidence the state differs first after step {step + 1:,} of stage {stage}"


def _hashes(run: RunDir) -> Mapping[tuple[str, int], Any]:
    """By stage and step, in order, what rank 0 recorded of the state after it."""
    files = sorted((run.path / "evidence").glob("world_*_rank_0.jsonl"))
    found: dict[tuple[str, int], Any] = {}
    for file in files:
        for line in parse_json_lines(file.read_text("utf-8", errors="replace").split("\n")):
            if line.get("kind") == "step" and isinstance(line.get("step"), int):
                found[str(line.get("stage")), line["step"]] = line.get("state")
    return found


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
