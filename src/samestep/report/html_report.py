"""One or several runs as one HTML page that needs nothing else: summary, curves, times, profiles, samples, settings,
events.

The page holds the numbers of its curves, thinned so that it stays small however long the runs are, and uPlot, which
draws them (see report.js).
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.durations import ago
from samestep.core.output import format_speed
from samestep.core.pages.drawing import box, drawing, text
from samestep.core.pages.html import Html, element, note, page, section
from samestep.core.pages.tables import Column, Table
from samestep.core.rundir import RunDir
from samestep.core.safe_files import write_text
from samestep.report.profiles import shown_profiles
from samestep.report.run_report import RunReport, describe_event, duration, read_report, worlds
from samestep.report.samples import shown_samples
from samestep.report.series import KINDS, Curve, RankTimes, kind_of
from samestep.report.shown import flat_settings, shown_command
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

POINTS, MOST_POINTS = 250_000, 2_000
"""Points of all curves together, and of one curve: a page stays below 5 MB."""
MOST_LINES = 8
"""Ranks that have a line each; of more the fastest, the middle and the slowest are drawn."""
REPORT = "report.html"
_HERE = Path(__file__).parent
_MS, _GB = 1e3, 1e-9


def write_report(runs: Sequence[RunDir], out: Path | None = None) -> Path:
    """Write the page to a file, or as report.html into a folder: by default that of the run, and this one for several
    runs. Returns its path."""
    path = out or (runs[0].path if len(runs) == 1 else Path()) / REPORT
    if path.is_dir():
        path /= REPORT
    verdicts = [diagnose(collect_evidence(rundir)).sentence for rundir in runs]
    write_text(path, report_page([read_report(*each) for each in zip(runs, verdicts)]))
    return path


def report_page(runs: Sequence[RunReport]) -> str:
    """The page."""
    charts = _Charts(runs)
    parts = [
        *_damage(runs),
        section("Summary", element("div", _summary(runs), kind="scroll")),
        _controls(runs) if charts.found else note("no metrics were logged yet"),
        *charts.sections(),
        *shown_samples([(report.summary.name, report.samples) for report in runs]),
        *_ranks(runs),
        *shown_profiles([(report.summary.name, report.profiles) for report in runs]),
        *_settings(runs),
        *_events(runs),
    ]
    title = " · ".join(report.summary.name for report in runs)
    return page(title, *parts, style=_style(), script=_script(), data=charts.data())


@cache
def _style() -> str:
    return "".join((_HERE / name).read_text("utf-8") for name in ("uplot/uPlot.min.css", "report.css"))


@cache
def _script() -> str:
    """uPlot with its licence, and what draws the curves with it."""
    licence = (_HERE / "uplot/LICENSE").read_text("utf-8")
    return f"/* uPlot\n{licence}*/\n" + "".join(
        (_HERE / name).read_text("utf-8") for name in ("uplot/uPlot.iife.min.js", "report.js")
    )


class _Charts:
    """The curves of all runs, those of the same stage and metric in one chart."""

    def __init__(self, runs: Sequence[RunReport]) -> None:
        self._runs = runs
        self.found: list[dict[str, Any]] = []
        self._groups: dict[tuple[str, str], list[int]] = {}
        lines = sum(len(metrics) for report in runs for metrics in report.curves.values())
        lines += sum(2 * min(times.ranks, MOST_LINES) for report in runs for times in report.ranks)
        self._most = max(20, min(MOST_POINTS, POINTS // max(1, lines)))
        for stage in dict.fromkeys(stage for report in runs for stage in report.stages):
            self._add_stage(stage)

    def _add_stage(self, stage: str) -> None:
        metrics = dict.fromkeys(name for report in self._runs for name in report.curves.get(stage, {}))
        for group in KINDS:
            for name in (name for name in metrics if kind_of(name) == group):
                lines = [
                    self._line(run, stage, report.summary.name, report.curves[stage][name], run)
                    for run, report in enumerate(self._runs)
                    if name in report.curves.get(stage, {})
                ]
                self._add(stage, group, name, lines)
        self._add_ranks(stage)

    def _add_ranks(self, stage: str) -> None:
        """Milliseconds of a step and memory, by rank; of several runs only the slowest rank of each."""
        for column, name, scale in (("step_seconds", "ms a step", _MS), ("memory", "GB of memory", _GB)):
            lines = []
            for run, report in enumerate(self._runs):
                for times in (each for each in report.ranks if each.stage == stage and column in each.columns):
                    for label, colour, values in _by_rank(times, column, alone=len(self._runs) == 1):
                        shown = label if len(self._runs) == 1 else f"{report.summary.name}, {label}"
                        curve = Curve(times.steps, values * scale)
                        lines.append(self._line(run, stage, shown, curve, colour if len(self._runs) == 1 else run))
            if lines:
                self._add(stage, "Ranks", name, lines)

    def _line(self, run: int, stage: str, label: str, curve: Curve, colour: int) -> dict[str, Any]:
        thinned = curve.thinned(self._most)
        return {"run": run, "stage": stage, "label": label, "colour": colour, **_encoded(thinned)}

    def _add(self, stage: str, group: str, name: str, lines: list[dict[str, Any]]) -> None:
        self._groups.setdefault((stage, group), []).append(len(self.found))
        self.found.append({"stage": stage, "name": name, "lines": lines})

    def sections(self) -> Iterator[Html]:
        """A section for each stage and kind of metric; the script draws into its places."""
        stages = {stage for stage, _ in self._groups}
        for (stage, group), numbers in self._groups.items():
            figures = [
                element(
                    "figure",
                    element("figcaption", self.found[number]["name"]),
                    element("div", kind="plot", data_chart=number),
                    kind="chart",
                    data_name=self.found[number]["name"],
                )
                for number in numbers
            ]
            title = f"{group} · stage {stage}" if len(stages) > 1 else group
            grid = element("div", *figures, kind="grid")
            yield element("section", element("h2", title), grid, kind="card charts")

    def data(self) -> dict[str, Any]:
        """For the script."""
        clocks: dict[int, dict[str, Any]] = {run: {} for run in range(len(self._runs))}
        marks = []
        for run, report in enumerate(self._runs):
            for stage in report.stages:
                if (clock := report.clock(stage)) is not None:
                    clocks[run][stage] = _encoded(clock.thinned(self._most))
            for mark in report.marks():
                marks.append({"run": run, "stage": mark.stage, "step": mark.step, "kind": mark.kind, "text": mark.text})
        names = [report.summary.name for report in self._runs]
        return {"runs": names, "charts": self.found, "clocks": clocks, "marks": marks}


def _encoded(curve: Curve) -> dict[str, str]:
    """Steps and values as base64 of 32-bit numbers, which take half the room of digits and may be NaN."""
    steps, values = curve.steps.astype("<u4"), curve.values.astype("<f4")
    return {"x": base64.b64encode(steps.tobytes()).decode(), "y": base64.b64encode(values.tobytes()).decode()}


def _by_rank(times: RankTimes, column: str, *, alone: bool) -> Iterator[tuple[str, int, np.ndarray]]:
    """Label, colour and values of the lines of a chart by rank."""
    values = times.columns[column]
    if not alone:
        yield f"the highest of {times.ranks} ranks", 0, values.max(axis=1)
    elif times.ranks <= MOST_LINES:
        yield from ((f"rank {rank}", rank, values[:, rank]) for rank in range(times.ranks))
    else:
        middle = np.median(values, axis=1)
        found = {"lowest": values.min(axis=1), "median": middle, "highest": values.max(axis=1)}
        yield from ((f"{name} of {times.ranks} ranks", place, each) for place, (name, each) in enumerate(found.items()))


def _summary(runs: Sequence[RunReport]) -> Html:
    facts = [_facts(report) for report in runs]
    names = [name for name in facts[0] if any(each[name] for each in facts)]
    columns = [Column(), *(Column(report.summary.name) for report in runs)]
    return Table(columns, [[name, *(each[name] for each in facts)] for name in names]).html("ruled")


def _facts(report: RunReport) -> dict[str, str]:
    summary, launches = report.summary, report.summary.launches
    best = summary.best
    devices = dict.fromkeys(str(launch["device"]) for launch in launches if launch.get("device"))
    hosts = dict.fromkeys(str(launch["host"]) for launch in launches if launch.get("host"))
    command: list[object] = next((each["command"] for each in launches if isinstance(each.get("command"), list)), [])
    of = f" of {summary.steps:,}" if summary.steps else ""
    again = shown_command([str(word) for word in command], launches[0].get("world") or 1) if command else ""
    return {
        "recipe": summary.recipe,
        "state": summary.state,
        "what became of it": "" if summary.state in ("done", "running") else report.verdict,
        "step": f"{summary.step:,}{of}" + f" (stage {summary.stage})" * bool(summary.stage) if summary.step else "",
        "best": f"{best.metric} {best.value:.6g} at step {best.step:,} (stage {best.stage})" if best else "",
        "speed": _speed(report),
        "processes": worlds(launches),
        "devices": ", ".join(devices),
        "hosts": ", ".join(hosts),
        "duration": duration(report),
        "last written": f"{_date(summary.changed)} ({ago(summary.age)} ago)" if summary.changed else "",
        "versions": ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        "the same run again": again,
    }


def _speed(report: RunReport) -> str:
    """The median of the last stage's rows."""
    found = report.curves.get(report.summary.stage, {})
    speeds = {name: float(np.nanmedian(curve.values)) for name, curve in found.items() if name.endswith("/s")}
    return ", ".join(f"{format_speed(value)} {name}" for name, value in speeds.items())


def _controls(runs: Sequence[RunReport]) -> Html:
    """What changes all curves."""
    switches = [
        element(
            "label",
            element("input", type="checkbox", checked="", data_run=place),
            drawing(14, 12, box(0, 0, 14, 12, f"dot{place % 8}")),
            report.summary.name,
        )
        for place, report in enumerate(runs)
    ]
    slider = element("input", id="smoothing", type="range", min=0, max=99, value=0, aria_label="smoothing")
    return element(
        "div",
        *(switches if len(runs) > 1 else []),
        element("label", "smoothing", slider, element("output", "0.00", id="smoothing-shown")),
        element("label", element("input", id="log", type="checkbox"), "log scale"),
        element("label", element("input", id="across", type="checkbox"), "by time"),
        element("label", element("input", id="marks", type="checkbox", checked=""), "events"),
        element("label", "find", element("input", id="filter", type="text", aria_label="find metrics by name")),
        element("span", "drag to zoom, double click for all", kind="faint"),
        kind="controls",
    )


def _ranks(runs: Sequence[RunReport]) -> Iterator[Html]:
    """Where the time of a step goes, rank by rank, and which ranks were slow."""
    parts: list[Html] = []
    for report in runs:
        for times in report.ranks:
            who = f"{report.summary.name}, " if len(runs) > 1 else ""
            parts.append(note(f"{who}stage {times.stage}, ranks: {times.ranks}"))
            parts.append(_time_bars(times))
        slow = [describe_event(event) for event in report.summary.events if event.get("kind") == "slow_rank"]
        parts += [element("p", sentence, kind="trouble") for sentence in dict.fromkeys(slow)]
    if parts:
        yield section("Where the time of a step goes", *parts)


def _time_bars(times: RankTimes) -> Html:
    """A bar for each rank, of up to 32."""
    parts, kinds = times.parts(), {"computing": "blue", "getting data": "orange", "waiting for other ranks": "grey"}
    total = np.sum(list(parts.values()), axis=0)
    longest, ranks = float(np.max(total)) or 1.0, min(times.ranks, 32)
    drawn, wide, left = [], 420.0, 60.0
    for rank in range(ranks):
        at, y = left, 18.0 * rank
        drawn.append(text(left - 8, y + 12, f"rank {rank}", "end", "soft"))
        for name, seconds in parts.items():
            width = wide * float(seconds[rank]) / longest
            drawn.append(box(at, y + 2, width, 13, kinds[name], f"{name}: {1000 * seconds[rank]:.2f} ms"))
            at += width
        drawn.append(text(at + 6, y + 12, f"{1000 * float(total[rank]):.3g} ms", "start", "soft"))
    legend = [
        element("span", drawing(14, 12, box(0, 0, 14, 12, kinds[name])), f"{name} {_share(values, total)}")
        for name, values in parts.items()
    ]
    rest = [note(f"and {times.ranks - ranks} more ranks")] if ranks < times.ranks else []
    chart = drawing(left + wide + 90, 18.0 * ranks + 4, *drawn)
    return element("div", element("p", *legend, kind="legend"), element("div", chart, kind="scroll"), *rest)


def _share(part: np.ndarray, total: np.ndarray) -> str:
    return f"{100 * float(part.sum()) / max(float(total.sum()), 1e-12):.0f}%"


def _settings(runs: Sequence[RunReport]) -> Iterator[Html]:
    """What differs between runs; and all settings, folded."""
    flat = [dict(flat_settings(report.summary.settings)) for report in runs]
    columns = [Column("setting"), *(Column(report.summary.name) for report in runs)]
    if len(runs) > 1:
        rows = differing_settings(flat)
        table = Table(columns, rows).html("ruled differs")
        shown = element("div", table, kind="scroll") if rows else note("none")
        yield section("Settings that differ", shown)
    rows = [
        [name, *(each.get(name, "") for each in flat)] for name in dict.fromkeys(name for each in flat for name in each)
    ]
    if rows:
        table = element("div", Table(columns, rows).html("ruled differs"), kind="scroll")
        yield section("Settings", element("details", element("summary", f"all {len(rows)}"), table))


def differing_settings(flat: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Name and value by run of each setting that is not the same everywhere; a run that lacks it has an empty cell."""
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [[name, *(each.get(name, "") for each in flat)] for name in names if name != "name"]
    return [row for row in rows if len(set(row[1:])) > 1]


def _events(runs: Sequence[RunReport]) -> Iterator[Html]:
    rows = []
    for report in runs:
        for event in report.summary.events:
            when = event.get("time")
            shown = _date(when) if isinstance(when, int | float) else ""
            rows.append([shown, *([report.summary.name] if len(runs) > 1 else []), describe_event(event)])
    if rows:
        columns = [Column("time"), *([Column("run")] if len(runs) > 1 else []), Column("event")]
        table = element("div", Table(columns, sorted(rows)).html("ruled"), kind="scroll")
        yield section("Events", element("details", element("summary", f"all {len(rows)}"), table))


def _damage(runs: Sequence[RunReport]) -> Iterator[Html]:
    """What is missing or cannot be read, first of all: the page shows the rest."""
    for report in runs:
        for file, why in report.damage.items():
            yield element("p", f"{report.summary.name}: {file}: {why}; what is there is shown", kind="trouble")


def _date(time: float) -> str:
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""
