"""A curve as lines of plain characters, for any terminal and any file."""

import math
from collections.abc import Sequence
from statistics import fmean


def draw_curve(points: Sequence[tuple[float, float]], width: int = 64, height: int = 8) -> list[str]:
    """The curve through (x, y) points in order of x: each column is the mean of its points, and rows reach from the
    lowest to the highest column. What is not finite is left out; empty where there is nothing else."""
    columns = _columns([point for point in points if math.isfinite(point[1])], width)
    if not columns:
        return []
    low, high = min(columns.values()), max(columns.values())
    rows = {x: round((high - y) / ((high - low) or 1.0) * (height - 1)) for x, y in columns.items()}
    labels = {0: f"{high:.3g}", height - 1: f"{low:.3g}"}
    margin = max(map(len, labels.values()))
    lines = []
    for row in range(height):
        marks = "".join("*" if rows.get(x) == row else " " for x in range(width))
        lines.append(f"{labels.get(row, ''):>{margin}} |{marks}".rstrip())
    return lines


def _columns(points: Sequence[tuple[float, float]], width: int) -> dict[int, float]:
    """The mean of each column that has points, from 0 to `width` - 1."""
    if not points:
        return {}
    first, last = points[0][0], points[-1][0]
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(int((x - first) / ((last - first) or 1.0) * (width - 1)), []).append(y)
    return {column: fmean(values) for column, values in found.items()}
