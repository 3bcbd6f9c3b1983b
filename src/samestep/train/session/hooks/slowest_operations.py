"""The slowest operations of profiled steps, from what torch.profiler recorded: a small table beside the trace."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from samestep.core.json_files import Json
from samestep.core.pages.tables import Column, Table

MOST = 30
SHOWN = 5
"""How many are printed."""
_WIDTH = 60
"""Characters of a name that are printed."""
_LONGEST_NAME = 300
NO_OPERATION = "(kernels of no operation)"


def slowest_operations(averages: Iterable[Any], device: str) -> list[dict[str, Json]]:
    """The operations with most time of their own, without what they call: on the device, or on the CPU where there is
    no other device. `averages` are those of `profile.key_averages()`; a share is one of all that time.

    Time on a device is that of the kernels that an operation started. What no operation started is one row.
    """
    averages = list(averages)
    kernels = [each for each in averages if each.device_type.name != "CPU" and not each.is_user_annotation]
    rows = [
        _row(each.key, each.count, each.self_cpu_time_total, each.self_device_time_total)
        for each in averages
        if each.device_type.name == "CPU"
    ]
    left = sum(each.self_device_time_total for each in kernels) - sum(1e6 * row["device_seconds"] for row in rows)
    if left > 0.5:  # of microseconds, which are rounded
        rows.append(_row(NO_OPERATION, 0, 0.0, left))
    by = "cpu_seconds" if device == "cpu" else "device_seconds"
    total = sum(row[by] for row in rows) or 1.0
    rows.sort(key=lambda row: (row[by], row["cpu_seconds"]), reverse=True)
    return [{**row, "share": row[by] / total} for row in rows[:MOST]]


def _row(name: str, calls: int, cpu: float, device: float) -> dict[str, Json]:
    """From microseconds."""
    return {"name": name[:_LONGEST_NAME], "calls": calls, "cpu_seconds": cpu / 1e6, "device_seconds": device / 1e6}


def printed_operations(rows: Sequence[Mapping[str, Any]], device: str, steps: str) -> str:
    """The first of them, as a table."""
    times = {"CPU": "cpu_seconds"} if device == "cpu" else {"GPU": "device_seconds", "CPU": "cpu_seconds"}
    cells = [
        [row["name"][:_WIDTH], *(f"{1e3 * row[key]:,.2f}" for key in times.values()), f"{row['calls']:,}", _share(row)]
        for row in rows[:SHOWN]
    ]
    columns: list[Column | str] = [Column("operation"), *(f"{name} ms" for name in times), "calls", "share"]
    return Table(columns, cells, title=f"the slowest operations of steps {steps}, by time of their own").text()


def _share(row: Mapping[str, Any]) -> str:
    return f"{row['share']:.0%}"
