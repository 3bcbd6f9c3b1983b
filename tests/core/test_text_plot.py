"""A curve in plain characters."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.text_plot import draw_curve, draw_fine_curve

Draw = Callable[[list[tuple[float, float]], int, int], list[str]]


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    points = [(float(x), 30.0 - 10 * x) for x in range(4)]
    assert draw_curve(points, width=4, height=4) == ["30 |*", "   | *", "   |  *", " 0 |   *"]


def test_a_column_is_the_mean_of_its_points() -> None:
    points = [(0.0, 4.0), (1.0, 6.0), (2.0, math.nan), (4.0, 1.0)]
    assert draw_curve(points, width=2, height=3) == ["5 |*", "  |", "1 | *"]


def test_a_fine_line_has_no_gaps() -> None:
    assert draw_fine_curve([(0.0, 0.0), (100.0, 7.0)], width=4, height=2) == ["7 |  ⣠⠞", "0 |⣠⠞⠁"]


@pytest.mark.parametrize("draw", [draw_curve, draw_fine_curve])
@given(values=st.lists(st.floats(width=32), max_size=30), width=st.integers(1, 40), height=st.integers(2, 9))
def test_every_curve_fits(draw: Draw, values: list[float], width: int, height: int) -> None:
    lines = draw([(float(step), value) for step, value in enumerate(values)], width, height)
    assert len(lines) == (height if any(map(math.isfinite, values)) else 0)
    assert all(len(line.partition("|")[2]) <= width for line in lines)
