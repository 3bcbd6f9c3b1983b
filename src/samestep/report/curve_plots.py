"""Curves of a run in a notebook: chosen by name, drawn by matplotlib where it is installed, else as SVG and as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.core.near_names import did_you_mean
from samestep.core.output import escape_controls
from samestep.core.pages.drawing import Scale, axis_across, axis_down, curve, dot, drawing_file, text
from samestep.core.pages.html import Html, element, svg_image
from samestep.core.text_plot import draw_curve
from samestep.report.series import Curve, kind_of, matching_names

_WIDTH, _HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 310, 34, 160
_POINTS = 480
"""Of a curve in a drawing; twice its width."""
_MOST_LETTERS = 60
"""Of a title."""
_MOST_NAMES = 12
"""Names that a message lists."""
_LARGEST = 1e300
"""Values are drawn as if they were not larger, so that their differences are numbers."""


@dataclass(frozen=True)
class NamedCurve:
    """A curve, and what it is called where it is drawn."""

    label: str
    curve: Curve

    @property
    def values(self) -> np.ndarray:
        """As they can be drawn: NaN for what is not finite."""
        values = self.curve.values
        return np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan)


class CurvePlot:
    """Curves where there is no matplotlib: a notebook shows them as drawings, a terminal as text."""

    def __init__(self, curves: Sequence[NamedCurve]) -> None:
        self._curves = curves

    def _repr_html_(self) -> str:
        return curve_images(self._curves)

    def __repr__(self) -> str:
        lines = []
        for each in self._curves:
            points = list(zip(each.curve.steps.tolist(), each.values.tolist()))
            lines += [escape_controls(each.label), *(draw_curve(points) or ["(no value is finite)"])]
        return "\n".join(lines)


def choose_curves(
    stages: Mapping[str, Mapping[str, Curve]], patterns: Sequence[str], stage: str | None, run: str
) -> list[NamedCurve]:
    """The curves of these names, or that match such patterns as `val/*`; without one all losses and validations."""
    if not any(stages.values()):
        raise UserError(f"{run} has no metrics yet")
    if stage is not None and stage not in stages:
        raise UserError(f"{run} has no stage {stage!r}{did_you_mean(stage, stages)}; it has {_listed(stages)}")
    searched = stages if stage is None else {stage: stages[stage]}
    known = list(dict.fromkeys(name for metrics in searched.values() for name in metrics))
    chosen = (
        [name for pattern in patterns for name in _matching(pattern, known, run)] if patterns else main_names(known)
    )
    if not chosen:
        raise UserError(f"{run} has no loss and no validation; name what to plot: it has {_listed(known)}")
    found = [(of, name) for name in dict.fromkeys(chosen) for of in searched if name in searched[of]]
    return _labelled(found, searched)


def main_curves(stages: Mapping[str, Mapping[str, Curve]]) -> list[NamedCurve]:
    """The losses and validations of all stages."""
    return _labelled([(stage, name) for stage, metrics in stages.items() for name in main_names(metrics)], stages)


def main_names(names: Iterable[str]) -> list[str]:
    """The names of losses and validations."""
    return [name for name in names if kind_of(name) in ("Loss", "Validation")]


def plot_curves(curves: Sequence[NamedCurve], title: str) -> Any:
    """The axes of matplotlib, which a notebook shows once, by the figure; a CurvePlot where it is not installed."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return CurvePlot(curves)
    _, axes = pyplot.subplots()
    for each in curves:
        marker = "." if np.isfinite(each.values).sum() == 1 else ""
        axes.plot(each.curve.steps, each.values, marker=marker, label=_literal(each.label))
    axes.set_xlabel("step")
    axes.set_title(_literal(title))
    if len(curves) == 1:
        axes.set_ylabel(_literal(curves[0].label))
    else:
        axes.legend([_literal(each.label) for each in curves])
    return axes


def curve_images(curves: Sequence[NamedCurve]) -> Html:
    """A drawing of each curve, beside each other as far as there is room."""
    return element("div", *(_image(each) for each in curves))


def _image(named: NamedCurve) -> Html:
    label = _cut(named.label)
    drawn = Curve(named.curve.steps, named.values).thinned(_POINTS)
    parts = [text(12, 20, label, kind="bold"), *_panel(drawn)]
    return svg_image(drawing_file(_WIDTH, _HEIGHT, *parts), alt=label)


def _panel(drawn: Curve) -> Iterator[Html]:
    """The curve between axes; where a value is not finite it has a gap."""
    is_finite = np.isfinite(drawn.values)
    if not is_finite.any():
        yield text(12, 50, "no value is finite", kind="soft")
        return
    low, high = float(drawn.values[is_finite].min()), float(drawn.values[is_finite].max())
    first, last = int(drawn.steps[0]), int(drawn.steps[-1])
    across, up = Scale(first, last, _LEFT, _RIGHT), Scale(low, high, _BOTTOM, _TOP)
    yield from axis_down(up, {value: f"{value:.4g}" for value in (low, low / 2 + high / 2, high)}, _LEFT, _RIGHT)
    yield from axis_across(across, {step: f"{step:,}" for step in (first, last)}, _TOP, _BOTTOM)
    for part in np.split(np.arange(len(is_finite)), np.flatnonzero(np.diff(is_finite)) + 1):
        if not is_finite[part[0]]:
            continue
        places = [(across(int(drawn.steps[at])), up(float(drawn.values[at]))) for at in part]
        yield curve(places, "blue") if len(places) > 1 else dot(*places[0], "blue", radius=2)


def _labelled(found: Sequence[tuple[str, str]], stages: Mapping[str, Mapping[str, Curve]]) -> list[NamedCurve]:
    """Named by their stages too, where they are of several."""
    is_one = len({stage for stage, _ in found}) <= 1
    return [NamedCurve(name if is_one else f"{name} (stage {stage})", stages[stage][name]) for stage, name in found]


def _matching(pattern: str, known: Sequence[str], run: str) -> list[str]:
    found = matching_names(pattern, known)
    if not found:
        raise UserError(f"{run} has no metric {pattern!r}{did_you_mean(pattern, known)}; it has {_listed(known)}")
    return found


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    shown = [escape_controls(_cut(name)) for name in list(names)[:_MOST_NAMES]]
    return ", ".join(shown) + (f", and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _cut(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]} ..."


def _literal(label: str) -> str:
    """A label that matplotlib shows as it is: a dollar sign would begin a formula."""
    return escape_controls(_cut(label)).replace("$", r"\$")
