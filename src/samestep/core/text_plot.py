"""A curve as lines of characters, for any terminal and any file."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of the eight dots of a character, by row and column."""


def draw_curve(points: Sequence[tuple[float, float]], width: int = 64, height: int = 8) -> list[str]:
    """The curve through (x, y) points in order of x: each column is the mean of its points, and rows reach from the
    lowest to the highest column. What is not finite is left out; empty where there is nothing else."""
    columns = _columns(points, width)
    marks = set(_rows(columns, height).items())
    lines = ["".join("*" if (x, row) in marks else " " for x in range(width)) for row in range(height)]
    return _labelled(lines, columns)


def draw_fine_curve(points: Sequence[tuple[float, float]], width: int = 64, height: int = 8) -> list[str]:
    """The same as a line without gaps, for a terminal that has Unicode: a character has two by four dots."""
    columns = _columns(points, 2 * width)
    rows = _rows(_without_gaps(columns), 4 * height)
    dots = [[0] * width for _ in range(height)]
    for x, row in rows.items():
        before = rows.get(x - 1, row)
        for each in range(min(row, before), max(row, before) + 1):
            dots[each // 4][x // 2] |= _BRAILLE[each % 4][x % 2]
    return _labelled(["".join(chr(0x2800 + bits) if bits else " " for bits in line) for line in dots], columns)


def _columns(points: Sequence[tuple[float, float]], width: int) -> dict[int, float]:
    """The mean of each column that has finite points, from 0 to `width` - 1."""
    points = [point for point in points if math.isfinite(point[1])]
    if not points:
        return {}
    first, last = points[0][0], points[-1][0]
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(int((x - first) / ((last - first) or 1.0) * (width - 1)), []).append(y)
    return {column: fmean(values) for column, values in found.items()}


def _without_gaps(columns: dict[int, float]) -> dict[int, float]:
    """Columns without points lie on the line between their neighbours."""
    known = sorted(columns)
    filled = dict(columns)
    for left, right in pairwise(known):
        for x in range(left + 1, right):
            share = (x - left) / (right - left)
            filled[x] = columns[left] * (1 - share) + columns[right] * share
    return filled


def _rows(columns: dict[int, float], height: int) -> dict[int, int]:
    """The row of each column, counted from the top."""
    if not columns:
        return {}
    low, high = min(columns.values()), max(columns.values())
    return {x: round((high - y) / ((high - low) or 1.0) * (height - 1)) for x, y in columns.items()}


def _labelled(lines: Sequence[str], columns: dict[int, float]) -> list[str]:
    """With the highest value beside the first line and the lowest beside the last one."""
    if not columns:
        return []
    labels = {len(lines) - 1: f"{min(columns.values()):.3g}", 0: f"{max(columns.values()):.3g}"}
    margin = max(map(len, labels.values()))
    return [f"{labels.get(row, ''):>{margin}} |{line}".rstrip() for row, line in enumerate(lines)]
