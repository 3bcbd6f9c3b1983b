"""A real run of samestep of many hours, stopped when it has logged its speed often enough: in a short run it would not
pay to compile."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class StoppedRun:
    """What a run had logged."""

    speeds: list[float]
    said: str
    """Its output and its log files."""


def run_and_stop(
    words: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    windows: int,
    unit: str,
    term: str = "loss",
    at_end: Callable[[], None] = lambda: None,
) -> StoppedRun:
    """Train until rows of metrics with `term` have the speed in `unit` so often; `at_end` is called before it is
    stopped. `words` are the recipe, and its preset."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        given = [f"{key}={value}" for key, value in {"out": folder, "name": "run", **options}.items()]
        command = [sys.executable, "-m", "samestep", "train", *words, *given, *settings]
        with (folder / "output").open("w+") as output:
            run = subprocess.Popen(command, stdout=output, stderr=output, text=True)
            speeds: list[float] = []
            while len(speeds) < windows and run.poll() is None:
                time.sleep(0.2)
                speeds = _speeds(folder / "run" / "metrics.jsonl", unit, term)
            at_end()
            run.kill()
            run.wait()
            output.seek(0)
            said = output.read()
        if len(speeds) < windows:
            raise subprocess.CalledProcessError(run.returncode, command, said)
        said += "".join(path.read_text() for path in (folder / "run").glob("logs/**/*.log"))
    return StoppedRun(speeds[:windows], said)


def memory_in_use() -> float:
    """Bytes of the device's memory that all processes use."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def _speeds(path: Path, unit: str, term: str) -> list[float]:
    """What has been logged so far."""
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    rows = map(json.loads, complete.splitlines())
    return [float(row[unit]) for row in rows if unit in row and term in row]
