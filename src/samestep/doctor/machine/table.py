"""What rank 0 prints: one table of all findings, and one of message sizes."""

import os
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samestep.doctor.check import plural
from samestep.doctor.machine.finding import Finding, Result, rate, size, span
from samestep.doctor.machine.plot import bar
from samestep.doctor.machine.speed import Point

_STYLES = {Result.OK: "green", Result.WARNING: "yellow", Result.FAILED: "bold red", Result.SKIPPED: "dim"}
_WIDTH = 100
"""Columns where nobody looks through a terminal."""


def console() -> Console:
    """Where everything is printed. Open MPI puts ranks before a terminal of no size, which is none."""
    is_seen = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    return Console(width=None if is_seen else _WIDTH, force_terminal=None if is_seen else False, highlight=False)


def findings_table(findings: Sequence[Finding], title: str) -> Table:
    """The table; sentences are wrapped, results are not."""
    drawn = _table(title)
    drawn.add_column("check", max_width=24)
    drawn.add_column("result", no_wrap=True)
    drawn.add_column("evidence", overflow="fold")
    for finding in findings:
        word = Text(finding.result.value, style=_STYLES[finding.result])
        drawn.add_row(Text(finding.name), word, Text(finding.sentence))
    return drawn


def speed_table(points: Sequence[Point], title: str) -> Table:
    """Message sizes with a bar for the bandwidth."""
    drawn = _table(title)
    for name in ("message", "time", "bandwidth"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("")
    largest = max(point.bus for point in points)
    for point in points:
        words = (size(point.bytes), span(point.seconds), rate(point.bus), bar(point.bus, largest))
        drawn.add_row(*(Text(word) for word in words))
    return drawn


def summary(findings: Sequence[Finding]) -> str:
    """`all 14 checks hold, 1 with a warning`, or how many failed."""
    count = {result: sum(finding.result is result for finding in findings) for result in Result}
    done = len(findings) - count[Result.SKIPPED]
    warned = f", {plural(count[Result.WARNING], 'warning')}" if count[Result.WARNING] else ""
    left_out = f", {count[Result.SKIPPED]} skipped" if count[Result.SKIPPED] else ""
    if count[Result.FAILED]:
        return f"{count[Result.FAILED]} of {plural(done, 'check')} failed{warned}{left_out}"
    return f"all {plural(done, 'check')} hold{warned}{left_out}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
