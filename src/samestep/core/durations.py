"""Durations: read from text, written as a clock, and shown as an age. No other module parses or prints them."""

import re

from samestep.core.errors import UserError

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_AGE_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse_duration(text: str, *, time_limit: bool = False) -> float:
    """Seconds from `90s`, `1.5m`, `2h`, `1d`, `HH:MM:SS`, `D-HH:MM:SS`, `MM:SS` or a plain number of seconds.

    `time_limit` is for the `--time` of a batch job. It refuses a plain number, and a clock without hours: SLURM reads a
    plain number as minutes, PBS as seconds.
    """
    amount, clock = _AMOUNT.fullmatch(text.strip()), _CLOCK.fullmatch(text.strip())
    if amount and (amount[2] or not time_limit):
        seconds = float(amount[1]) * _SECONDS[amount[2]]
        if seconds >= 1 or not time_limit:
            return seconds
    elif clock and (clock[2] or not time_limit):
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if time_limit:
        raise UserError(f"--time {text!r} is not a time limit; write 30m, 2h, 1d, HH:MM:SS or D-HH:MM:SS")
    raise UserError(f"{text!r} is not a duration; write 90s, 30m, 2h or HH:MM:SS")


def format_clock(seconds: float) -> str:
    """Seconds as HH:MM:SS, which every scheduler reads in the same way."""
    total = int(seconds)
    return f"{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"


def ago(seconds: float) -> str:
    """An age, such as `5 min`."""
    length, unit = next((pair for pair in _AGE_UNITS if seconds >= pair[0]), (1, "s"))
    return f"{max(0.0, seconds) / length:.0f} {unit}"


def format_spent(seconds: float) -> str:
    """Time that something took, in its two largest units: `2 min 3 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), list[str]()
    for length, unit in _AGE_UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))
