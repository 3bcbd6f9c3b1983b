"""Columns of numbers and texts, for a notebook: a pandas DataFrame where pandas is installed, else a small table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.core.output import escape_controls, plural
from samestep.core.pages.html import Html, element, note
from samestep.core.pages.tables import Column, Table
from samestep.report.series import Curve

MOST_CELLS = 1 << 28
"""Numbers of a table, 2 GB: a damaged file can have other metrics in every row."""
MOST_ROWS, MOST_COLUMNS = 20, 20
"""What is shown of a table."""


class MetricsTable:
    """A table where there is no pandas: `table["loss"]` is an array, and its rows can be iterated over as dicts."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self._values = dict(values)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._values)

    def __getitem__(self, column: str) -> np.ndarray:
        return self._values[column]

    def __len__(self) -> int:
        return len(next(iter(self._values.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(len(self)):
            yield self._row(row)

    def _row(self, row: int) -> dict[str, Any]:
        found = ((name, values[row]) for name, values in self._values.items())
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in found}

    def _repr_html_(self) -> str:
        return element("div", notebook_table(self._shown()), note(self._size()), kind="samestep")

    def __repr__(self) -> str:
        return f"{escape_controls(self._shown().text())}\n{self._size()}"

    def _size(self) -> str:
        return f"{plural(len(self), 'row')}, {plural(len(self.columns), 'column')}"

    def _shown(self) -> Table:
        """The first and the last rows."""
        names, count = self.columns[:MOST_COLUMNS], len(self)
        columns = [Column(name, is_number=self._values[name].dtype != object) for name in names]
        half = MOST_ROWS // 2
        if count <= MOST_ROWS:
            return Table(columns, [self._cells(row, names) for row in range(count)])
        first = [self._cells(row, names) for row in range(half)]
        last = [self._cells(row, names) for row in range(count - half, count)]
        return Table(columns, [*first, ["..."] * len(names), *last])

    def _cells(self, row: int, names: Sequence[str]) -> list[str]:
        found = self._row(row)
        return [_cell(found[name]) for name in names]


def as_table(columns: Mapping[str, np.ndarray]) -> Any:
    """Columns as whoever looks at them has them: with pandas, or without it. Texts come without control characters,
    which a terminal would obey."""
    plain = {escape_controls(name): _plain(values) for name, values in columns.items()}
    try:
        import pandas as pd
    except ImportError:
        return MetricsTable(plain)
    return pd.DataFrame(plain)


def metrics_columns(stages: Mapping[str, Mapping[str, Curve]]) -> dict[str, np.ndarray]:
    """Stage, step, and all metrics, a row for each step of each stage; NaN where a metric was not logged."""
    steps = {
        stage: np.unique(np.concatenate([curve.steps for curve in curves.values()]))
        for stage, curves in stages.items()
        if curves
    }
    counts = [len(each) for each in steps.values()]
    names = list(dict.fromkeys(["epoch", *(name for stage in steps for name in stages[stage])]))
    if sum(counts) * len(names) > MOST_CELLS:
        raise UserError(
            f"{sum(counts):,} steps with {len(names):,} metrics are too many for one table; look at single ones "
            "with plot"
        )
    found = {
        "stage": np.repeat(np.array(list(steps), dtype=object), counts),
        "step": np.concatenate([np.zeros(0, np.int64), *steps.values()]),
    }
    for name in names:
        found[name] = np.full(sum(counts), np.nan)
    start = 0
    for stage, rows in steps.items():
        for name, curve in stages[stage].items():
            found[name][start + np.searchsorted(rows, curve.steps)] = curve.values
        start += len(rows)
    epochs = found["epoch"]
    if np.isfinite(epochs).all() and (np.abs(epochs) < 2**53).all():
        found["epoch"] = epochs.astype(np.int64)
    return found


def column_of(values: Sequence[Any], is_number: bool) -> np.ndarray:
    """Values as a column; NaN stands for a number that there is none of."""
    if not is_number:
        found = np.empty(len(values), dtype=object)
        found[:] = values
        return found
    if all(isinstance(value, int) for value in values):
        return np.array(values, dtype=np.int64)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def notebook_table(table: Table) -> Html:
    """A table for HTML in a notebook, whose style ends texts at the right, as numbers."""
    style = ".samestep th, .samestep td { text-align: left } .samestep .number { text-align: right }"
    return Html(element("style", style) + table.html())


def _plain(values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return values
    return column_of([escape_controls(value) if isinstance(value, str) else value for value in values], is_number=False)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"
