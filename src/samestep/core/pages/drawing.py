"""Drawings as SVG, inside a page or as a file of their own: lines, texts, boxes, curves, and axes for them.

Colours are classes of drawing.css, so a drawing follows the page into the dark: blue, orange, green, grey; ink, soft.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.core.pages.html import Html, element

_STYLE = Path(__file__).with_name("drawing.css").read_text(encoding="utf-8")
Point = tuple[float, float]


def drawing(width: float, height: float, *parts: Html) -> Html:
    """A drawing for a page."""
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", width=f"{width:g}", role="img")


def drawing_file(width: float, height: float, *parts: Html) -> str:
    """A file of its own, on a sheet."""
    sheet = element("rect", width=f"{width:g}", height=f"{height:g}", kind="sheet")
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    inside = [element("style", Html(_STYLE)), sheet, *parts]
    return element("svg", *inside, xmlns="http://www.w3.org/2000/svg", **size) + "\n"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "") -> Html:
    return element("line", kind=kind, x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2))


def text(x: float, y: float, shown: str, anchor: str = "start", kind: str = "") -> Html:
    """A text that begins, ends or has its middle at a place."""
    return element("text", shown, kind=kind, x=float(x), y=float(y), text_anchor=anchor)


def box(x: float, y: float, width: float, height: float, kind: str, tooltip: str = "") -> Html:
    place = {"x": float(x), "y": float(y), "width": float(width), "height": float(height)}
    return element("rect", *_tooltip(tooltip), kind=kind, **place)


def dot(x: float, y: float, kind: str, tooltip: str = "", radius: float = 3.5) -> Html:
    return element("circle", *_tooltip(tooltip), kind=kind, cx=float(x), cy=float(y), r=float(radius))


def curve(points: Sequence[Point], kind: str) -> Html:
    """A line through points."""
    return element("polyline", kind=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def chip(kind: str) -> Html:
    """A small box of a colour, for a legend."""
    return drawing(14, 12, box(0, 0, 14, 12, kind))


def _tooltip(shown: str) -> list[Html]:
    return [element("title", shown)] if shown else []


@dataclass(frozen=True)
class Scale:
    """Where numbers lie along a drawing: `low` at `start`, `high` at `stop`."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(each) if self.is_log else each for each in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (at - low) / (high - low if high != low else 1.0)


def axis_down(scale: Scale, labels: Mapping[float, str], left: float, right: float) -> list[Html]:
    """Rules across a drawing at some numbers, which stand before them."""
    parts = []
    for value, label in labels.items():
        parts.append(line(left, scale(value), right, scale(value)))
        parts.append(text(left - 8, scale(value) + 4, label, "end"))
    return parts


def axis_across(
    scale: Scale, labels: Mapping[float, str], top: float, bottom: float, kinds: Mapping[float, str] | None = None
) -> list[Html]:
    """Rules down a drawing at some numbers, which stand under them; `kinds` are other rules than the usual."""
    parts = []
    for value, label in labels.items():
        parts.append(line(scale(value), top, scale(value), bottom, (kinds or {}).get(value, "")))
        parts.append(text(scale(value), bottom + 16, label, "middle", "soft"))
    return parts


def bars(counts: Mapping[int, int], across: Scale, top: float, height: float, kinds: Sequence[str]) -> list[Html]:
    """A histogram on a line: how many things are in each bin, as many bins as `kinds` over the whole scale."""
    wide, most, bottom = (across.stop - across.start) / len(kinds), max(counts.values()), top + height
    parts = [line(across.start, bottom, across.stop, bottom)]
    for place, count in sorted(counts.items()):
        high = (height - 4) * count / most
        parts.append(box(across.start + wide * place, bottom - high, wide - 1, high, kinds[place], f"{count}"))
    return parts
