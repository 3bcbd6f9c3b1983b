"""What rank 0 prints: a banner, one progress bar on a terminal, plain lines elsewhere."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from samestep.core import terminal_lines
from samestep.core.console import PlainConsole
from samestep.core.durations import format_spent
from samestep.core.launch_env import FOLDER
from samestep.core.output import is_terminal

LINE_SECONDS = 2.0
"""How often at most a progress line is printed where there is no terminal."""
SAY_SECONDS = 1.0
"""What takes longer than this before the first step is said."""
TAKE_SECONDS = 0.2
"""How often lines of the launcher and of other ranks are looked for, where there is a bar."""


class Screen(AbstractContextManager["Screen"]):
    """The terminal of rank 0; silent on the others and with `quiet`."""

    def __init__(self, visible: bool) -> None:
        self.console = PlainConsole(quiet=not visible, soft_wrap=True)
        self._bar: Progress | None = None
        self._lines = _LinesAbove(self.print)
        self._tasks: dict[str, TaskID] = {}
        self._shown = time.monotonic()
        self._first: dict[str, tuple[float, int]] = {}
        """By what progresses, when and where it was first seen."""

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.quiet:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[metrics]}", markup=False),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._lines.stop()
            self._bar.stop()
            self._bar = None

    def banner(self, title: str, lines: Mapping[str, str]) -> None:
        """The resolved set-up in a few lines. The bars of a stage before it are taken away."""
        if self._bar is not None:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            self._lines.bars(len(self._bar.tasks))
        self._tasks.clear()
        self._first.clear()
        self.facts(title, lines)

    def facts(self, title: str, lines: Mapping[str, str]) -> None:
        """Names and values, one below the other. No line is broken, so a path or a command can be copied."""
        width = max(map(len, lines))
        self.console.print(Text(title, style="italic"))
        for name, value in lines.items():
            indented = value.replace("\n", "\n" + " " * (width + 2))
            self.console.print(Text.assemble((name.ljust(width), "dim"), "  ", indented))
        self.console.print()

    def print(self, text: str) -> None:
        """Print one line above the bars."""
        self.console.print(text)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say what is being done, if it takes a while."""
        timer = threading.Timer(SAY_SECONDS, self.print, [f"{what} ..."])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def begin(self, what: str, done: int, total: int) -> None:
        """Show the bar of what begins now; the first numbers may take a while."""
        if self._bar is not None:
            self.advance(what, done, total, "")

    def advance(self, what: str, done: int, total: int, metrics: str) -> None:
        """Move a bar; without a terminal print a line now and then, and always at the end."""
        if self._bar is None:
            now = time.monotonic()
            began, first = self._first.setdefault(what, (now, done))
            if now - self._shown >= LINE_SECONDS or done == total:
                self._shown = now
                left = (now - began) / (done - first) * (total - done) if done > first else 0.0
                self.print(f"{what} {done}/{total}  {metrics}" + (f"  left {format_spent(left)}" if left else ""))
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total, metrics=metrics)
            self._lines.bars(len(self._bar.tasks))
        self._bar.update(self._tasks[what], completed=done, total=total, metrics=metrics)

    def track(self, what: str, items: Iterable, total: int) -> Iterable:
        """A second bar under the first for as long as `items` last (a validation, a dump)."""
        if self._bar is None:
            yield from items
            return
        task = self._bar.add_task(what, total=total, metrics="")
        self._lines.bars(len(self._bar.tasks))
        try:
            for item in items:
                yield item
                self._bar.advance(task)
        finally:
            self._bar.remove_task(task)
            self._lines.bars(len(self._bar.tasks))


class _LinesAbove:
    """Prints above the bars what the launcher and other ranks hand over (core/terminal_lines.py)."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._folder = show, os.environ.get(FOLDER)
        self._takes = self._folder is not None and is_terminal(sys.stderr)  # else they are not for this terminal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines above the bars", daemon=True)

    def start(self) -> None:
        """Begin: bars are drawn from now on."""
        self.bars(1)
        if self._takes:
            self._thread.start()

    def bars(self, count: int) -> None:
        """So many bars are drawn now."""
        terminal_lines.record_bars(max(1, count), os.environ)

    def stop(self) -> None:
        """Print what is left, and end; the launcher prints what comes now."""
        self._stop.set()
        if self._takes:
            self._thread.join()
            self._print_lines()
        terminal_lines.record_bars(0, os.environ)

    def _run(self) -> None:
        while not self._stop.wait(TAKE_SECONDS):
            self._print_lines()

    def _print_lines(self) -> None:
        for line in terminal_lines.take_lines(Path(self._folder or "")):
            self._show(line)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics on one line, short enough to read; those with an interval as `win_rate 0.5 (0.42 to 0.58)`."""
    return "  ".join(f"{name} {_with_interval(metrics, name)}" for name in metrics if not _is_bound(metrics, name))


def choose_metrics(metrics: Mapping[str, float], shown: Sequence[str]) -> dict[str, float]:
    """The metrics that `shown` names (names or glob patterns), in its order, each with its interval if it has one."""
    named = [name for pattern in shown for name in metrics if fnmatchcase(name, pattern)]
    bounds = [name for name in metrics if _is_bound(metrics, name) and name[: name.rindex("_")] in named]
    return {name: metrics[name] for name in dict.fromkeys([*named, *bounds])}


def _is_bound(metrics: Mapping[str, float], name: str) -> bool:
    """Whether it is an end of the interval of another metric, as `win_rate_low` is of `win_rate`."""
    metric, _, end = name.rpartition("_")
    return end in ("low", "high") and {metric, f"{metric}_low", f"{metric}_high"} <= metrics.keys()


def _with_interval(metrics: Mapping[str, float], name: str) -> str:
    if not _is_bound(metrics, f"{name}_low"):
        return _short(metrics[name])
    low, high = (_short(metrics[f"{name}_{end}"]) for end in ("low", "high"))
    return f"{_short(metrics[name])} ({low} to {high})"


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2e}"
