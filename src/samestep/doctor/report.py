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
from html import escape
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from samestep.core.console import PlainConsole
from samestep.core.errors import EXIT_FAILURE
from samestep.core.exit_report import ExitReport
from samestep.core.output import is_terminal, plural
from samestep.core.records import Json, read_json, write_atomically, write_json
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
        return any(finding.result is FindingStatus.FAILED for finding in self.runner.findings)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show on a terminal which check runs."""
        with console().status("waiting for all ranks") as status:
            self.runner.show = lambda name: status.update(f"now: {name}")
            yield

    def print_and_save(self) -> None:
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
    cache = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "samestep" / "machine.json"


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
