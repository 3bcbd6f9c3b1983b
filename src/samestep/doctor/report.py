"""What `samestep doctor` prints and keeps on rank 0: tables, the file of constants, the picture, the verdict."""

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samestep.core.errors import EXIT_FAILURE
from samestep.core.exit_report import ExitReport
from samestep.core.records import write_atomically
from samestep.doctor import constants
from samestep.doctor.checks import devices, group, speed
from samestep.doctor.checks.speed import Point
from samestep.doctor.findings import Finding, FindingStatus, rate, size, span
from samestep.doctor.plot import bar, svg
from samestep.doctor.runner import CheckRunner
from samestep.verify.tolerance import plural

_STYLES = {
    FindingStatus.OK: "green",
    FindingStatus.WARNING: "yellow",
    FindingStatus.FAILED: "bold red",
    FindingStatus.SKIPPED: "dim",
}
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
    count = {result: sum(finding.result is result for finding in findings) for result in FindingStatus}
    done = len(findings) - count[FindingStatus.SKIPPED]
    warned = f", {plural(count[FindingStatus.WARNING], 'warning')}" if count[FindingStatus.WARNING] else ""
    left_out = f", {count[FindingStatus.SKIPPED]} skipped" if count[FindingStatus.SKIPPED] else ""
    if count[FindingStatus.FAILED]:
        return f"{count[FindingStatus.FAILED]} of {plural(done, 'check')} failed{warned}{left_out}"
    return f"all {plural(done, 'check')} hold{warned}{left_out}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


@dataclass
class DoctorReport:
    """Tells what a course found."""

    course: CheckRunner
    test: str
    keep: Path | None = None

    @property
    def is_bad(self) -> bool:
        """Whether anything failed."""
        return any(finding.result is FindingStatus.FAILED for finding in self.course.findings)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """On a terminal, what is going on."""
        with console().status("waiting for all ranks") as status:
            self.course.show = lambda doing: status.update(f"now: {doing}")
            yield

    def tell(self) -> None:
        """Print and keep everything."""
        screen, findings = console(), self.course.findings
        screen.print(findings_table(findings, f"samestep doctor --test {self.test} on {self._layout()}"))
        points = speed.points(self.course.reports.get(speed.NAME, ()))
        if points:
            screen.print(speed_table(points, self._plot_title()))
        self._save(screen, points)
        screen.print(summary(findings))
        if self.is_bad and not self.course.stopped:  # for torchrun, which shows it at the end of its own words
            said = f"{summary(findings)}; see the table above"
            word = ExitReport(said, EXIT_FAILURE, 0, socket.gethostname(), traceback=said, time=time.time())
            word.write(os.environ)

    def _save(self, screen: Console, points: list[Point]) -> None:
        reports, seat = self.course.reports, self.course.seat
        if self.keep is None and (self.course.broken or not constants.constants(reports)):
            return
        path = self.keep or constants.default_path(os.environ)
        hosts = [host or "unknown" for host in seat.hosts]
        key = constants.machine_key(hosts, self._kind())
        try:
            constants.save(path, key, constants.entry(reports, hosts, self._kind(), self.course.findings))
            screen.print(f"what was found and measured: {path}", soft_wrap=True)
            if points:
                picture = path.with_suffix(".svg")
                write_atomically(picture, svg(points, self._plot_title()))
                screen.print(f"picture of all-reduce by message size: {picture}", soft_wrap=True)
        except OSError as error:
            screen.print(f"{path} cannot be written ({error.strerror}); give another one with --json", soft_wrap=True)

    def _kind(self) -> str:
        reports = self.course.reports
        if group.EXAM.name in reports:
            return str(reports[group.EXAM.name][0].fact["device"]).partition(":")[0]
        told = reports.get(devices.EXAM.name)
        return str(told[0].fact.get("kind", "unknown")) if told else "unknown"

    def _layout(self) -> str:
        seat = self.course.seat
        hosts = list(dict.fromkeys(host for host in seat.hosts if host))
        where = hosts[0] if len(hosts) == 1 else plural(len(hosts), "host")
        return f"{where}, {plural(seat.place.size, 'rank')}"

    def _plot_title(self) -> str:
        backend = self.course.reports[group.EXAM.name][0].fact["backend"]
        return f"all-reduce by {backend} on {self._layout()}"
