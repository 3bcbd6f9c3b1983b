"""What `samestep doctor` prints and saves on rank 0: tables, the summary, a plot, and what was measured, for later
planning: one file for all machines, by their hosts, devices and ranks."""

import math
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from samestep.core.console import PlainConsole
from samestep.core.errors import EXIT_FAILURE
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json, read_json, write_atomically, write_json
from samestep.core.output import is_terminal, plural
from samestep.core.pages.drawing import Scale, axis_down, curve, dot, drawing_file, line, text
from samestep.core.pages.html import Html
from samestep.core.pages.tables import Column, Styled, Table
from samestep.core.paths import required_cache_folder
from samestep.doctor.check import CheckRunner
from samestep.doctor.checks import collectives, devices, disk, speed
from samestep.doctor.checks.speed import Point
from samestep.doctor.findings import Finding, FindingStatus, RankReports, format_bytes, format_rate, format_seconds

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
    columns = (Column("check", wraps=True, width=24), Column("result"), Column("evidence", wraps=True))
    rows = [(each.name, Styled(each.result.value, _STYLES[each.result]), each.sentence) for each in findings]
    return Table(columns, rows, title)


def speed_table(points: Sequence[Point], title: str) -> Table:
    """Message sizes with a bar for the bandwidth."""
    numbers = [Column(name, is_number=True) for name in ("message", "time", "bandwidth")]
    largest = max(point.bus for point in points)
    rows = [(*_cells(point), bar(point.bus, largest)) for point in points]
    return Table((*numbers, Column(wraps=True)), rows, title)


def _cells(point: Point) -> tuple[str, str, str]:
    return format_bytes(point.bytes), format_seconds(point.seconds), format_rate(point.bus)


def summary(findings: Sequence[Finding]) -> str:
    """`all 14 checks hold, 1 with a warning`, or how many failed."""
    count = {result: sum(finding.result is result for finding in findings) for result in FindingStatus}
    done = len(findings) - count[FindingStatus.SKIPPED]
    warned = f", {plural(count[FindingStatus.WARNING], 'warning')}" if count[FindingStatus.WARNING] else ""
    left_out = f", {count[FindingStatus.SKIPPED]} skipped" if count[FindingStatus.SKIPPED] else ""
    if count[FindingStatus.FAILED]:
        return f"{count[FindingStatus.FAILED]} of {plural(done, 'check')} failed{warned}{left_out}"
    return f"all {plural(done, 'check')} hold{warned}{left_out}"


@dataclass
class DoctorReport:
    """Prints and saves what the checks found."""

    runner: CheckRunner
    test: str
    json_file: Path | None = None

    @property
    def is_bad(self) -> bool:
        return any(finding.result is FindingStatus.FAILED for finding in self.runner.findings)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show on a terminal which check runs."""
        with console().status("waiting for all ranks") as status:
            self.runner.show = lambda name: status.update(f"now: {name}")
            yield

    def print_and_save(self) -> None:
        screen, findings = console(), self.runner.findings
        screen.print(findings_table(findings, f"samestep doctor --test {self.test} on {self._layout()}").drawn())
        points = speed.points(self.runner.reports.get(speed.NAME, ()))
        if points:
            screen.print(speed_table(points, self._plot_title()).drawn())
        self._save(screen, points)
        screen.print(summary(findings))
        if self.is_bad and not self.runner.stopped:  # for torchrun, which shows it at the end of its own output
            text = f"{summary(findings)}; see the table above"
            report = ExitReport(text, EXIT_FAILURE, 0, socket.gethostname(), traceback=text, time=time.time())
            report.write(os.environ)

    def _save(self, screen: PlainConsole, points: list[Point]) -> None:
        reports, context = self.runner.reports, self.runner.context
        if self.json_file is None and (self.runner.broken or not constants(reports)):
            return
        path = self.json_file or default_path(os.environ)
        hosts = [host or "unknown" for host in context.hosts]
        key = machine_key(hosts, self._device_type())
        try:
            save(path, key, entry(reports, hosts, self._device_type(), self.runner.findings))
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


FORMAT = 1


def default_path(env: Mapping[str, str]) -> Path:
    """The file that constants are saved to by default."""
    return required_cache_folder(env) / "machine.json"


def machine_key(hosts: Sequence[str], kind: str) -> str:
    """The key of a machine in the file: `node1 x4, node2 x4, cuda`."""
    counts = Counter(hosts)
    return ", ".join([*(f"{host} x{count}" for host, count in counts.items()), kind])


def entry(
    reports: Mapping[str, RankReports], hosts: Sequence[str], kind: str, found: Sequence[Finding]
) -> dict[str, Json]:
    """The entry for a machine: always the findings, and the constants if they were measured."""
    checked: dict[str, Json] = {
        "hosts": list(hosts),
        "device": kind,
        "checked": _now(),
        "versions": reports["versions"][0].measured["versions"] if "versions" in reports else {},
        "checks": [{"name": f.name, "result": f.result.value.lower(), "sentence": f.sentence} for f in found],
    }
    measured = constants(reports)
    return {**checked, "measured": {"date": _now(), **measured}} if measured else checked


def constants(reports: Mapping[str, RankReports]) -> dict[str, Json]:
    """The constants in what all ranks measured: in seconds, bytes per second and FLOP/s."""
    found: dict[str, Json] = {}
    if speed.NAME in reports and (points := speed.points(reports[speed.NAME])):
        backend = reports[collectives.GROUP][0].measured["backend"]
        sweep = [{"bytes": p.bytes, "seconds": p.seconds, "bus_bytes_per_s": p.bus} for p in points]
        found["all_reduce"] = {
            "backend": backend,
            "latency_s": min(point.seconds for point in points),
            "bus_bytes_per_s": max(point.bus for point in points),
            "by_size": sweep,
        }
    if speed.STRAGGLERS in reports:
        by_rank = [report.measured for report in reports[speed.STRAGGLERS]]
        about = {name: by_rank[0][name] for name in ("width", "dtype")}
        found["matmul"] = {**about, "flops_by_rank": [measured["flops"] for measured in by_rank]}
    writers = [r for r in reports.get(disk.SPEED_CHECK.name, ()) if r.measured]
    if writers:
        found["disk_write_bytes_per_s"] = {report.host: report.measured["bytes_per_s"] for report in writers}
    if speed.NEXT in reports and reports[speed.NEXT][0].measured:
        found["next_rank_bytes_per_s"] = [report.measured["bytes_per_s"] for report in reports[speed.NEXT]]
    if speed.HOST in reports and reports[speed.HOST][0].measured:
        found["to_device_bytes_per_s"] = [report.measured["to"] for report in reports[speed.HOST]]
        found["from_device_bytes_per_s"] = [report.measured["back"] for report in reports[speed.HOST]]
    return found


def save(path: Path, key: str, new: Mapping[str, Json]) -> None:
    """Put an entry into the file, beside those of other machines; fields that it lacks keep their old values."""
    try:
        known = read_json(path)
    except ValueError:
        known = None
    is_known = isinstance(known, dict) and known.get("format") == FORMAT  # a file of another kind counts as empty
    machines = known.get("machines", {}) if is_known else {}
    write_json(path, {"format": FORMAT, "machines": {**machines, key: {**machines.get(key, {}), **new}}})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


WIDTH, HEIGHT = 860, 380
_TOP, _BOTTOM, _LEFT, _GAP, _RIGHT = 70, 320, 80, 100, 40
_PANEL = (WIDTH - _LEFT - _GAP - _RIGHT) // 2
_BAR = 24


def svg(points: Sequence[Point], title: str) -> str:
    """Two panels on logarithmic scales: how long a message takes, and how many bytes a second that is."""
    right = _LEFT + _PANEL + _GAP
    return drawing_file(
        WIDTH,
        HEIGHT,
        text(_LEFT, 28, title, kind="title"),
        *_panel(_LEFT, "time of one all-reduce", points, lambda point: point.seconds, format_seconds, "orange"),
        *_panel(right, "bus bandwidth of a rank", points, lambda point: point.bus, format_rate, "blue"),
    )


def _panel(
    left: float, title: str, points: Sequence[Point], value: Callable[[Point], float], label: Callable[[float], str],
    colour: str,
) -> list[Html]:  # fmt: skip
    right, decades = left + _PANEL, _decades([value(point) for point in points])
    across = Scale(points[0].bytes, points[-1].bytes, left, right, is_log=True)
    up = Scale(decades[0], decades[-1], _BOTTOM, _TOP, is_log=True)
    parts = [text(left, _TOP - 14, title, kind="bold")]
    parts += axis_down(up, {decade: label(decade) for decade in decades}, left, right)
    for point in points[::3]:
        parts.append(line(across(point.bytes), _BOTTOM, across(point.bytes), _BOTTOM + 5, "axis"))
        parts.append(text(across(point.bytes), _BOTTOM + 20, format_bytes(point.bytes), "middle"))
    parts.append(line(left, _BOTTOM, right, _BOTTOM, "axis"))
    places = [(across(point.bytes), up(value(point))) for point in points]
    parts.append(curve(places, colour))
    for point, (x, y) in zip(points, places, strict=True):
        size, seconds, rate = _cells(point)
        parts.append(dot(x, y, colour, f"{size}: {seconds}, {rate}"))
    return [*parts, text(left + _PANEL / 2, _BOTTOM + 42, "message size", "middle")]


def _decades(values: Sequence[float]) -> list[float]:
    """Powers of ten that hold all values between them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def bar(value: float, largest: float) -> str:
    """A bar of up to 24 characters, in eighths of one."""
    eighths = round(8 * _BAR * value / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
