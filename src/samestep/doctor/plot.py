"""Plots time and bandwidth by message size: as SVG, and as bars for a terminal."""

import math
from collections.abc import Callable, Sequence
from html import escape

from samestep.doctor.checks.speed import Point
from samestep.doctor.findings import format_bytes, format_rate, format_seconds

WIDTH, HEIGHT = 860, 380
_TOP, _BOTTOM, _LEFT, _GAP, _RIGHT = 70, 320, 80, 100, 40
_PANEL = (WIDTH - _LEFT - _GAP - _RIGHT) // 2
_STYLE = "font-family: system-ui, sans-serif; font-size: 12px"
_INK, _FAINT = "#333", "#ddd"
_BAR = 24


def svg(points: Sequence[Point], title: str) -> str:
    """Two panels on logarithmic scales: how long a message takes, and how many bytes a second that is."""
    panels = [
        _panel(_LEFT, "time of one all-reduce", points, lambda point: point.seconds, format_seconds, "#b45309"),
        _panel(
            _LEFT + _PANEL + _GAP, "bus bandwidth of a rank", points, lambda point: point.bus, format_rate, "#1d4ed8"
        ),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="{_STYLE}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            _text(_LEFT, 28, title, "start", 'font-size="15" font-weight="600"'),
            *panels,
            "</svg>\n",
        ]
    )


def _panel(
    left: float, title: str, points: Sequence[Point], value: Callable[[Point], float], label: Callable[[float], str],
    colour: str,
) -> str:  # fmt: skip
    decades = _decades([value(point) for point in points])
    low, high = math.log10(decades[0]), math.log10(decades[-1])
    first, last = math.log2(points[0].bytes), math.log2(points[-1].bytes)

    def across(count: float) -> float:
        return left + _PANEL * (math.log2(count) - first) / max(last - first, 1)

    def up(number: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (math.log10(number) - low) / (high - low)

    parts = [_text(left, _TOP - 14, title, "start", 'font-weight="600"')]
    for decade in decades:
        parts.append(_line(left, up(decade), left + _PANEL, up(decade), _FAINT))
        parts.append(_text(left - 8, up(decade) + 4, label(decade), "end"))
    for point in points[::3]:
        parts.append(_line(across(point.bytes), _BOTTOM, across(point.bytes), _BOTTOM + 5, _INK))
        parts.append(_text(across(point.bytes), _BOTTOM + 20, format_bytes(point.bytes), "middle"))
    parts.append(_line(left, _BOTTOM, left + _PANEL, _BOTTOM, _INK))
    places = [(across(point.bytes), up(value(point))) for point in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for point, (x, y) in zip(points, places):
        tooltip = escape(f"{format_bytes(point.bytes)}: {format_seconds(point.seconds)}, {format_rate(point.bus)}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{tooltip}</title></circle>')
    parts.append(_text(left + _PANEL / 2, _BOTTOM + 42, "message size", "middle"))
    return "\n".join(parts)


def _decades(values: Sequence[float]) -> list[float]:
    """Powers of ten that hold all values between them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}" {more}>{escape(text)}</text>'


def bar(value: float, largest: float) -> str:
    """A bar of up to 24 characters, in eighths of one."""
    eighths = round(8 * _BAR * value / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
