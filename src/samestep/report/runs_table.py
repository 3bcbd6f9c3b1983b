"""A list of runs: sorted, filtered, as a table or as JSON."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samestep.core.durations import ago
from samestep.core.errors import UserError
from samestep.core.near_names import did_you_mean
from samestep.core.output import format_size
from samestep.core.pages.tables import Column, Styled, Table
from samestep.report.run_summary import RunSummary

COLUMNS = ("name", "recipe", "state", "stage", "step", "steps", "metric", "best", "age", "size", "host")
"""What is known of a run, as in the JSON; all may be sorted and filtered by."""
STATE_STYLES = {"running": "green", "failed": "red", "killed": "red", "preempted": "yellow", "waiting": "yellow"}
_FILTER = re.compile(r"([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def facts(run: RunSummary) -> dict[str, Any]:
    """What the list shows of a run, as JSON."""
    best = run.best
    return {
        "name": run.name,
        "path": str(run.rundir.path),
        "recipe": run.recipe,
        "state": run.state,
        "stage": run.stage,
        "step": run.step,
        "steps": run.steps,
        "metric": best.metric if best else None,
        "best": best.value if best else None,
        "best_step": best.step if best else None,
        "age": round(run.age, 1) if run.changed else None,
        "size": run.size,
        "host": run.host,
        "damage": dict(run.damage),
    }


def chosen(found: Sequence[Mapping[str, Any]], filters: Sequence[str], order: str) -> list[Mapping[str, Any]]:
    """Those that pass all filters, in the order of a column; `-age` is the other way round. Runs without a value come
    last either way."""
    for text in filters:
        passes = _filter(text)
        found = [each for each in found if passes(each)]
    column, is_reversed = order.removeprefix("-"), order.startswith("-")
    _require_column(column, "sort")
    known = [each for each in found if each[column] is not None]
    known.sort(key=lambda each: _sortable(each[column]), reverse=is_reversed)
    return [*known, *(each for each in found if each[column] is None)]


def runs_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """The list for people."""
    columns = [Column("run"), Column("recipe"), Column("state"), Column("step", is_number=True)]
    columns += [Column("best"), Column("age", is_number=True), Column("size", is_number=True), Column("host")]
    return Table(columns, [_row(each) for each in found])


def _row(run: Mapping[str, Any]) -> list[str]:
    state = Styled(run["state"], STATE_STYLES.get(run["state"], ""))
    done = "" if run["step"] is None else f"{run['step']:,}" + (f"/{run['steps']:,}" if run["steps"] else "")
    best = "" if run["best"] is None else f"{run['metric']} {run['best']:.5g} at {run['best_step']:,}"
    age = "" if run["age"] is None else ago(run["age"])
    return [run["name"], run["recipe"], state, done, best, age, format_size(run["size"]), run["host"]]


def _filter(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a run passes: `state=running`, `best<2.5`, or a word that is in its name, recipe or state."""
    match = _FILTER.fullmatch(text)
    if match is None:
        return lambda run: any(text.lower() in str(run[name]).lower() for name in ("name", "recipe", "state"))
    column, sign, wanted = match[1], match[2], match[3].strip()
    _require_column(column, "filter")
    compare = _COMPARISONS[sign]

    def passes(run: Mapping[str, Any]) -> bool:
        value = run[column]
        if value is None:
            return False
        return compare(value, _as_number(text, wanted)) if not isinstance(value, str) else compare(value, wanted)

    return passes


def _as_number(text: str, wanted: str) -> float:
    try:
        number = float(wanted)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(f"filter {text!r} compares with a number, and {wanted!r} is none")
    return number


def _require_column(column: str, option: str) -> None:
    if column not in COLUMNS:
        near = did_you_mean(column, COLUMNS)
        raise UserError(f"{option} knows no {column!r}{near}; choose one of {', '.join(COLUMNS)}")


def _sortable(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
