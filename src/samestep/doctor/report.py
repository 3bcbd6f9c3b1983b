"""What `samestep doctor` prints and saves on rank 0: tables, the file of constants, a plot, and the summary."""

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from samestep.core.console import PlainConsole
from samestep.core.errors import EXIT_FAILURE
from samestep.core.exit_report import ExitReport
from samestep.core.output import is_terminal, plural
from samestep.core.records import write_atomically
from samestep.doctor import constants
from samestep.doctor.checks import collectives, devices, speed
from samestep.doctor.checks.speed import Point
from samestep.doctor.findings import Finding, FindingStatus, format_bytes, format_rate, format_seconds
from samestep.doctor.plot import bar, svg
from samestep.doctor.runner import CheckRunner

_STYLES = {
    FindingStatus.OK: "green",
    FindingStatus.WARNING: "yellow",
    FindingStatus.FAILED: "bold red",
    FindingStatus.SKIPPED: "dim",
}
_WIDTH = 100
"""Columns when the output is not a terminal."""


def console() -> PlainConsole:
    """Where everything is printed."""
    return PlainConsole() if is_terminal(sys.stdout) else PlainConsole(width=_WIDTH, force_terminal=False)


def findings_table(findings: Sequence[Finding], title: str) -> Table:
    """The table; sentences are wrapped, results are not."""
    table = _table(title)
    table.add_column("check", max_width=24)
    table.add_column("result", no_wrap=True)
    table.add_column("evidence", overflow="fold")
    for finding in findings:
        result = Text(finding.result.value, style=_STYLES[finding.result])
        table.add_row(Text(finding.name), result, Text(finding.sentence))
    return table


def speed_table(points: Sequence[Point], title: str) -> Table:
    """Message sizes with a bar for the bandwidth."""
    table = _table(title)
    for name in ("message", "time", "bandwidth"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    largest = max(point.bus for point in points)
    for point in points:
        cells = (
            format_bytes(point.bytes),
            format_seconds(point.seconds),
            format_rate(point.bus),
            bar(point.bus, largest),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


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
    """Prints and saves what the checks found."""

    runner: CheckRunner
    test: str
    json_file: Path | None = None

    @property
    def is_bad(self) -> bool:
        """Whether anything failed."""
        return any(finding.result is FindingStatus.FAILED for finding in self.runner.findings)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show on a terminal which check runs."""
        with console().status("waiting for all ranks") as status:
            self.runner.show = lambda name: status.update(f"now: {name}")
            yield

    def print_and_save(self) -> None:
        """Print the tables and the summary, and save the constants."""
        screen, findings = console(), self.runner.findings
        screen.print(findings_table(findings, f"samestep doctor --test {self.test} on {self._layout()}"))
        points = speed.points(self.runner.reports.get(speed.NAME, ()))
        if points:
            screen.print(speed_table(points, self._plot_title()))
        self._save(screen, points)
        screen.print(summary(findings))
        if self.is_bad and not self.runner.stopped:  # for torchrun, which shows it at the end of its own output
            text = f"{summary(findings)}; see the table above"
            report = ExitReport(text, EXIT_FAILURE, 0, socket.gethostname(), traceback=text, time=time.time())
            report.write(os.environ)

    def _save(self, screen: PlainConsole, points: list[Point]) -> None:
        reports, context = self.runner.reports, self.runner.context
        if self.json_file is None and (self.runner.broken or not constants.constants(reports)):
            return
        path = self.json_file or constants.default_path(os.environ)
        hosts = [host or "unknown" for host in context.hosts]
        key = constants.machine_key(hosts, self._device_type())
        try:
            constants.save(path, key, constants.entry(reports, hosts, self._device_type(), self.runner.findings))
            screen.print(f"findings and measurements: {path}", soft_wrap=True)
            if points:
                plot = path.with_suffix(".svg")
                write_atomically(plot, svg(points, self._plot_title()))
                screen.print(f"plot of all-reduce by message size: {plot}", soft_wrap=True)
        except OSError as error:
            screen.print(f"{path} cannot be written ({error.strerror}); choose another one with --json", soft_wrap=True)

    def _device_type(self) -> str:
        reports = self.runner.reports
        if collectives.GROUP in reports:
            return str(reports[collectives.GROUP][0].measured["device"]).partition(":")[0]
        found = reports.get(devices.CHECK.name)
        return str(found[0].measured.get("kind", "unknown")) if found else "unknown"

    def _layout(self) -> str:
        context = self.runner.context
        hosts = list(dict.fromkeys(host for host in context.hosts if host))
        where = hosts[0] if len(hosts) == 1 else plural(len(hosts), "host")
        return f"{where}, {plural(context.rank_info.size, 'rank')}"

    def _plot_title(self) -> str:
        backend = self.runner.reports[collectives.GROUP][0].measured["backend"]
        return f"all-reduce by {backend} on {self._layout()}"
