"""All of a run that a report shows, read from its directory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samestep.core.durations import format_spent
from samestep.core.rundir import RunDir
from samestep.report.profiles import ProfiledSteps, read_profiles
from samestep.report.run_summary import RunSummary, read_summary
from samestep.report.samples import NamedSamples, read_samples
from samestep.report.series import Curve, RankTimes, read_curves, read_rank_times
from samestep.train.record.damaged_files import Reader
from samestep.train.trained.shown import shown_text

_TROUBLE = ("slow_rank", "save_failed", "ended", "unequal", "stalled")
_AXIS = ("save", "resume", "launch", *_TROUBLE)
"""The kinds of events that are shown on the axis of the curves."""
MOST_SKIPPED = 200
"""Marks of a metric for rows in which steps were skipped."""


@dataclass(frozen=True)
class Mark:
    """An event at a step of a stage."""

    stage: str
    step: int
    kind: str
    """save, launch or trouble."""
    text: str


@dataclass
class RunReport:
    """A run with its curves."""

    summary: RunSummary
    curves: dict[str, dict[str, Curve]]
    """By stage and metric."""
    ranks: list[RankTimes]
    samples: list[NamedSamples] = field(default_factory=list)
    verdict: str = ""
    """A sentence on what became of it."""
    damage: Mapping[str, str] = field(default_factory=dict)
    profiles: Sequence[ProfiledSteps] = ()

    @property
    def stages(self) -> list[str]:
        return list(self.curves)

    def clock(self, stage: str) -> Curve | None:
        """Seconds of training at steps of a stage: without validation, saves, and time between launches."""
        found = [times for times in self.ranks if times.stage == stage]
        if not found:
            return None
        steps = np.concatenate([times.steps for times in found])
        spent = np.concatenate([times.columns["step_seconds"][:, 0] for times in found])
        order = np.argsort(steps, kind="stable")
        steps, spent = steps[order], np.nan_to_num(spent[order])
        return Curve(steps, np.cumsum(spent * np.diff(steps, prepend=0)))

    def marks(self) -> list[Mark]:
        """The events that have a place on the axis of steps, and rows in which steps were skipped."""
        found = list(self._skipped())
        for event in self.summary.events:
            kind, stage = str(event.get("kind")), event.get("stage")
            if kind not in _AXIS:
                continue
            step = event.get("step")
            if not isinstance(step, int) or not isinstance(stage, str):
                stage, step = self._place(event.get("time"))
            if stage:
                group = "trouble" if kind in _TROUBLE else "save" if kind == "save" else "launch"
                found.append(Mark(stage, step, group, describe_event(event)))
        return found

    def _skipped(self) -> Iterator[Mark]:
        for stage, metrics in self.curves.items():
            for name, curve in metrics.items():
                if name.rpartition("/")[2] == "skipped":
                    for step in curve.steps[curve.values > 0].tolist()[:MOST_SKIPPED]:
                        yield Mark(stage, step, "trouble", f"steps were skipped before step {step:,}")

    def _place(self, time: Any) -> tuple[str, int]:
        """Stage and step at a time, as the rows of ranks tell; no stage where nothing was logged before."""
        before = [
            (times.times[place - 1], times.stage, int(times.steps[place - 1]))
            for times in self.ranks
            if isinstance(time, int | float) and (place := int(np.searchsorted(times.times, time, side="right")))
        ]
        return max(before)[1:] if before else ("", 0)


def read_report(rundir: RunDir, verdict: str = "") -> RunReport:
    """Everything that can be read; what cannot is in `damage`."""
    reader, summary = Reader(rundir.path), read_summary(rundir)
    curves, ranks = read_curves(rundir, reader), read_rank_times(rundir, reader)
    profiles, samples = read_profiles(rundir, reader), read_samples(rundir, reader)
    return RunReport(summary, curves, ranks, samples, verdict, {**summary.damage, **reader.damage}, profiles)


def describe_event(event: Mapping[str, Any]) -> str:
    """An event in a few words."""
    kind, step = event.get("kind"), event.get("step")
    at = f" at step {step:,}" if isinstance(step, int) else ""
    if kind == "launch":
        world, device = event.get("world") or "?", event.get("device") or "unknown device"
        return f"launch with {world} {'process' if world == 1 else 'processes'} on {device}"
    if kind == "slow_rank":
        return f"rank {event.get('rank')} on {event.get('host')} slows the others down{at}"
    if kind == "ended":
        return shown_text(f"ended: {event.get('text') or event.get('code')}")
    if kind == "save_failed":
        return shown_text(f"save{at} failed: {event.get('why')}")
    if kind == "best":
        value = event.get("value")
        shown = f"{value:.6g}" if isinstance(value, int | float) else value
        return f"best {event.get('metric')} so far, {shown}{at}"
    words = {"save": "checkpoint", "resume": "resumed", "stage": f"stage {event.get('stage')} begins"}
    return f"{words.get(str(kind), str(kind).replace('_', ' '))}{at}"


def duration(report: RunReport) -> str:
    """From the first launch to the last thing that was written, and how much of it was training."""
    times = [event["time"] for event in report.summary.launches if isinstance(event.get("time"), int | float)]
    if not times:
        return ""
    trained = sum(clock.last for stage in report.stages if (clock := report.clock(stage)) is not None)
    return f"{format_spent(max(0.0, report.summary.changed - times[0]))} ({format_spent(trained)} in steps)"


def worlds(launches: Sequence[Mapping[str, Any]]) -> str:
    """How many processes there were, launch by launch: 4, then 2."""
    counts = [str(launch.get("world") or "?") for launch in launches]
    kept = [count for place, count in enumerate(counts) if place == 0 or counts[place - 1] != count]
    return ", then ".join(kept)
