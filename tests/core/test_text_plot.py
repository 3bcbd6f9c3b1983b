"""A curve in plain characters."""

import math

from hypothesis import given
from hypothesis import strategies as st

from samestep.core.text_plot import draw_curve


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    points = [(float(x), 30.0 - 10 * x) for x in range(4)]
    assert draw_curve(points, width=4, height=4) == ["30 |*", "   | *", "   |  *", " 0 |   *"]


def test_a_column_is_the_mean_of_its_points() -> None:
    points = [(0.0, 4.0), (1.0, 6.0), (2.0, math.nan), (4.0, 1.0)]
    assert draw_curve(points, width=2, height=3) == ["5 |*", "  |", "1 | *"]


@given(st.lists(st.floats(width=32), max_size=30), st.integers(1, 40), st.integers(2, 9))
def test_every_curve_fits(values: list[float], width: int, height: int) -> None:
    lines = draw_curve([(float(step), value) for step, value in enumerate(values)], width, height)
    assert len(lines) == (height if any(map(math.isfinite, values)) else 0)
    assert all(len(line.partition("|")[2]) <= width for line in lines)
