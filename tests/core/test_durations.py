"""Durations as people and schedulers write them."""

import pytest

from samestep.core.durations import format_clock, format_spent, parse_duration
from samestep.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("30m", 1800),
        ("2h", 7200),
        (" 2 h ", 7200),
        ("1d", 86400),
        ("01:02:03", 3723),
        ("5:00", 300),
        ("100:00:00", 360000),
    ],
)
def test_durations(text: str, wanted: float) -> None:
    assert parse_duration(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "-5m", "1w", "1:2:3:4", "2h30m", "nan"])
def test_text_that_is_not_a_duration(text: str) -> None:
    with pytest.raises(UserError, match="is not a duration; write 90s, 30m, 2h or HH:MM:SS"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("30m", "00:30:00"), ("2h", "02:00:00"), ("1d", "24:00:00"), ("1:02:03", "01:02:03"), ("2-01:00:00", "49:00:00")],
)
def test_time_limits(text: str, wanted: str) -> None:
    assert format_clock(parse_duration(text, time_limit=True)) == wanted


@pytest.mark.parametrize("text", ["60", "1:30", "soon", "-5m"])
def test_time_limits_that_schedulers_read_differently_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a time limit"):
        parse_duration(text, time_limit=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.44, "9.4 s"),
        (59.6, "1 min"),
        (123, "2 min 3 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (3661, "1 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_time_that_was_spent(seconds: float, text: str) -> None:
    assert format_spent(seconds) == text
