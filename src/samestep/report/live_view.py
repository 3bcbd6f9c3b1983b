"""How `samestep watch` draws a run: what fits on the terminal, the curves in what the rest leaves."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from samestep.core.durations import ago, format_spent
from samestep.core.output import format_size, format_speed
from samestep.core.pages.tables import Column, Styled, Table
from samestep.core.text_plot import draw_curve, draw_fine_curve
from samestep.report.live_run import LiveRun, Points
from samestep.report.run_report import describe_event
from samestep.report.runs_table import STATE_STYLES
from samestep.report.series import matching_names
from samestep.train.record.liveness import FRESH, Heartbeat

MOST_RANKS, MOST_EVENTS, MOST_CURVES = 8, 4, 4
LEAST_CURVE = 3
"""Lines of a curve; where there is less room, fewer are drawn."""
LATE = 15.0
"""Seconds without a heartbeat, after which a rank is marked: it writes one every five."""
_BAR = 30
_FRAME = 15
"""Characters of a panel beside a curve: its frame, and the numbers."""


class LiveView:
    """Draws a run for a terminal of some size."""

    def __init__(self, run: LiveRun, patterns: Sequence[str] = (), last: int | None = None, *, fine: bool) -> None:
        """`patterns` name the metrics to draw; `last` is how many of the last steps are drawn; `fine`: the terminal
        has Unicode."""
        self._run, self._patterns, self._last, self._fine = run, patterns, last, fine

    def drawn(self, width: int, height: int) -> RenderableType:
        """The whole view."""
        head, ranks, events = list(self._head()), self._ranks(), list(self._events())
        taken = len(head) + len(ranks.rows) + 4 + len(events) + 2
        curves = self._curves(width, height - taken)
        below = [ranks.drawn()] if ranks.rows else []
        return Group(*head, *curves, *below, *events)

    def _head(self) -> Iterator[Text]:
        run, summary = self._run, self._run.summary
        state = (summary.state, STATE_STYLES.get(summary.state, ""))
        changed = f"  written {ago(summary.age)} ago" if summary.changed else ""
        yield Text.assemble((summary.name, "bold"), f"  {summary.recipe}  ", state, (changed, "dim"), no_wrap=True)
        if not summary.stage:
            yield Text("no step yet", style="dim")
            return
        of = f"/{summary.steps:,}" if summary.steps else ""
        filled = round(_BAR * min(1.0, run.step / summary.steps)) if summary.steps else 0
        full, empty = ("━", "─") if self._fine else ("=", "-")
        bar = (full * filled, "green"), (empty * (_BAR - filled), "dim")
        left = run.seconds_left if summary.state == "running" else None
        told = f"  {run.step:,}{of}" + (f"  left {format_spent(left)}" if left else "")
        yield Text.assemble(f"stage {summary.stage}  ", *bar, told, no_wrap=True, overflow="ellipsis")
        yield Text("  ".join(self._numbers()), no_wrap=True, overflow="ellipsis")
        for file, why in list(summary.damage.items())[:2]:
            yield Text(f"{file}: {why}", style="yellow", no_wrap=True)

    def _numbers(self) -> Iterator[str]:
        """Speed and the best value."""
        for name, curve in self._run.curves.get(self._run.summary.stage, {}).items():
            if name.endswith("/s"):
                yield f"{format_speed(curve.last)} {name}"
        if best := self._run.summary.best:
            yield f"best {best.metric} {best.value:.5g} at {best.step:,}"

    def _curves(self, width: int, room: int) -> list[RenderableType]:
        """As many as there is room for, side by side on a wide terminal."""
        across = 2 if width >= 100 else 1
        names = self._names()
        most = max(1, room // (LEAST_CURVE + 2)) * across
        names = names[:most]
        if not names:
            return [Text("no metrics yet", style="dim")]
        down = -(-len(names) // across)
        height = min(14, max(LEAST_CURVE, room // down - 2))
        return [Columns([self._panel(name, width // across, height) for name in names], padding=0)]

    def _names(self) -> list[str]:
        known = self._run.curves.get(self._run.summary.stage, {})
        if not self._patterns:
            return self._run.chosen(MOST_CURVES)
        return list(dict.fromkeys(name for each in self._patterns for name in matching_names(each, known)))

    def _panel(self, name: str, width: int, height: int) -> Panel:
        curve = self._run.curves[self._run.summary.stage][name]
        points = curve.points
        if self._last is not None:
            points = [point for point in points if point[0] > points[-1][0] - self._last]
        draw = draw_fine_curve if self._fine else draw_curve
        lines = draw(points, max(8, width - _FRAME), height)
        title = f"{name}  {curve.last:.5g}  {_steps(points)}"
        text = Text("\n".join(lines), no_wrap=True)
        return Panel(text, title=Text(title), title_align="left", width=width, height=height + 2)

    def _ranks(self) -> Table:
        """What each rank does; of many those that are late or slow."""
        beats = self._run.heartbeats
        row = self._run.ranks[-1] if self._run.ranks else {}
        seconds, data = (_by_rank(row.get(name), len(beats)) for name in ("step_seconds", "data_seconds"))
        order = sorted(beats, key=lambda beat: (-_lateness(beat), -seconds.get(beat.rank, 0.0), beat.rank))
        shown = sorted(order[:MOST_RANKS], key=lambda beat: beat.rank)
        rows = [[*self._doing(beat), _ms(seconds.get(beat.rank)), _ms(data.get(beat.rank))] for beat in shown]
        if len(beats) > len(shown):
            rows.append(["...", f"{len(beats) - len(shown)} more", "", "", "", "", ""])
        columns = [Column("rank"), Column("host"), Column("does"), Column("step", is_number=True)]
        columns += [Column(name, is_number=True) for name in ("memory", "ms a step", "of it data")]
        return Table(columns, rows)

    def _doing(self, beat: Heartbeat) -> list[str]:
        is_over = self._run.summary.state not in ("running", "killed")
        late = _lateness(beat)
        if is_over:
            doing = Styled("ended", "dim")
        elif late:
            doing = Styled(f"silent for {ago(late)}, was in {beat.activity}", "red" if late >= FRESH else "yellow")
        else:
            doing = Styled(f"{beat.activity} for {ago(beat.seconds)}" if beat.seconds >= 5 else beat.activity, "")
        step = "" if beat.step is None else f"{beat.step:,}"
        return [str(beat.rank), beat.host, doing, step, format_size(beat.memory) if beat.memory else ""]

    def _events(self) -> Iterator[Text]:
        """The last ones, the newest below."""
        now = time.time()
        for event in self._run.summary.events[-MOST_EVENTS:]:
            when = event.get("time")
            since = f"{ago(now - when):>7} ago  " if isinstance(when, int | float) else ""
            yield Text.assemble(
                (since, "dim"), " ".join(describe_event(event).split()), no_wrap=True, overflow="ellipsis"
            )


def _lateness(beat: Heartbeat) -> float:
    """Seconds since the last heartbeat, 0 where it is no sign of anything."""
    return beat.age if beat.age > LATE else 0.0


def _by_rank(values: Any, count: int) -> dict[int, float]:
    """A number by rank, of those that have one; none where the row is of other ranks."""
    found = values if isinstance(values, list) and len(values) == count else []
    return {rank: value for rank, value in enumerate(found) if isinstance(value, int | float)}


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.4g}"


def _steps(points: Points) -> str:
    return f"({points[0][0]:,.0f} to {points[-1][0]:,.0f})"
