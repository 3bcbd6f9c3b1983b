"""Shows checks as they are done: a table on a terminal, one line a check elsewhere, so that `grep` finds it."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samestep.doctor.check import Check, Result

_STYLES = {
    Result.OK: "green",
    Result.FAILED: "bold red",
    Result.UNVERIFIABLE: "bold yellow",
    Result.UNKNOWN: "dim",
    Result.NOT_RUN: "dim",
}


class Board:
    """Where checks appear, and on a terminal also what is going on."""

    def __init__(self, title: str) -> None:
        self.checks: list[Check] = []
        self._title, self._doing = title, "starting"
        self._terminal = sys.stdout.isatty()
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._terminal:
            self._live = self._stack.enter_context(Live(get_renderable=self._draw, refresh_per_second=4))
        else:
            print(self._title, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._doing = ""
        self._stack.close()

    def say(self, text: str) -> None:
        """What is going on now."""
        self._doing = f"now: {text}"

    def add(self, check: Check) -> None:
        """One more check is done."""
        self.checks.append(check)
        if not self._terminal:
            print(f"{check.result:7} {check.name}: {check.sentence}", flush=True)

    def _draw(self) -> Group | Table:
        drawn = table(self.checks, self._title)
        return Group(drawn, Text(self._doing, style="dim")) if self._doing else drawn


def table(checks: Iterable[Check], title: str) -> Table:
    """The table; sentences are wrapped, results are not."""
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("check", max_width=34)
    drawn.add_column("result", no_wrap=True)
    drawn.add_column("evidence", overflow="fold")
    for check in checks:
        drawn.add_row(Text(check.name), Text(check.result, style=_STYLES[check.result]), Text(check.sentence))
    return drawn
