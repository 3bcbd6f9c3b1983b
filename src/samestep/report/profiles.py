"""The slowest operations of profiled steps in a page, with the path of the trace that they are from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.json_files import Json
from samestep.core.pages.html import Html, element, note, section
from samestep.core.pages.tables import Column, Table
from samestep.core.rundir import RunDir
from samestep.train.record.damaged_files import Reader
from samestep.train.trained.shown import shown_text

_FILE = {"first": int, "last": int, "rank": int, "device": str, "operations": list}
_ROW = {"name": str, "calls": int, "cpu_seconds": float, "device_seconds": float, "share": float}
_MOST_ROWS, _MOST_FILES = 30, 16
OPEN = (
    "Open the trace in https://ui.perfetto.dev (it stays in the browser) or in chrome://tracing to see every step on a "
    "time line."
)


@dataclass(frozen=True)
class ProfiledSteps:
    """What was profiled of a stage on one rank."""

    stage: str
    steps: str
    rank: int
    trace: Path
    device: str
    rows: Sequence[Mapping[str, Json]]
    """By operation, the slowest first."""


def read_profiles(rundir: RunDir, reader: Reader) -> list[ProfiledSteps]:
    """All that was profiled; what is missing in a file is left out."""
    found = []
    for stage, path, trace in rundir.profiled_operations():
        data = reader.object(path, _FILE)
        if any(data.get(name) is None for name in _FILE):
            reader.add(path, "it is not a table of operations")
            continue
        rows = reader.objects(path, data["operations"][:_MOST_ROWS], _ROW)
        steps = f"{data['first']:,} to {data['last']:,}"
        named = [row for row in rows if row.get("name")]
        found.append(ProfiledSteps(stage, steps, data["rank"], trace, data["device"], named))
    return found


def shown_profiles(runs: Sequence[tuple[str, Sequence[ProfiledSteps]]]) -> Iterator[Html]:
    """A section with the tables, all but the first folded."""
    found = [(name if len(runs) > 1 else "", each) for name, profiles in runs for each in profiles]
    parts = [_shown(who, profile, is_open=place == 0) for place, (who, profile) in enumerate(found[:_MOST_FILES])]
    if len(found) > _MOST_FILES:
        parts.append(note(f"and {len(found) - _MOST_FILES} more"))
    if parts:
        yield section("Slowest operations", note("Time of their own, without what they call. " + OPEN), *parts)


def _shown(who: str, profile: ProfiledSteps, *, is_open: bool) -> Html:
    has_device = profile.device != "cpu"
    columns: list[Column | str] = [Column("operation"), *(["GPU ms"] if has_device else []), "CPU ms", "calls", "share"]
    rows = [_cells(row, has_device=has_device) for row in profile.rows]
    table = element("div", Table(columns, rows).html("ruled"), kind="scroll")
    where = (who, f"stage {profile.stage}", f"steps {profile.steps}", f"rank {profile.rank}")
    about = ", ".join(part for part in where if part)
    trace = f"trace: {shown_text(str(profile.trace))}" + ("" if profile.trace.is_file() else " (not there any more)")
    opened = {"open": ""} if is_open else {}
    return element("details", element("summary", about), element("p", trace, kind="note"), table, **opened)


def _cells(row: Mapping[str, Json], *, has_device: bool) -> list[str]:
    device = [_milliseconds(row.get("device_seconds"))] if has_device else []
    share, calls = row.get("share"), row.get("calls")
    return [
        str(row["name"]),
        *device,
        _milliseconds(row.get("cpu_seconds")),
        "" if calls is None else f"{calls:,}",
        "" if not _is_number(share) else f"{share:.1%}",
    ]


def _milliseconds(seconds: Any) -> str:
    return f"{1e3 * seconds:,.2f}" if _is_number(seconds) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
