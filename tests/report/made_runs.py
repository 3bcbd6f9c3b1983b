"""Run directories that nobody trained: their files, as training writes them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.rundir import RunDir

START = 1_790_000_000.0


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(
    folder: Path, name: str = "demo-1", *, steps: int = 40, ranks: int = 2, shift: float = 0.0, **settings: Any
) -> RunDir:
    """A run that is done: a row every second step, validations every ten, a checkpoint in the middle."""
    run = RunDir(folder / name)
    run.path.mkdir(parents=True)
    config = {"preset": "tiny", "learning_rate": 0.01, "log": {"every": 2}, **settings}
    run.config.write_text(json.dumps({"recipe": "mdlm", "config": config, "versions": {"torch": "2.13"}}))
    run.status.write_text(json.dumps({"status": "done"}))
    (run.path / "lock").write_text(json.dumps({"host": "node1", "pid": 1}))
    rows: list[dict[str, Any]] = []
    for step in range(2, steps + 1, 2):
        loss = shift + math.exp(-step / steps)
        rows.append({"stage": "fit", "step": step, "epoch": 0, "loss": loss, "lr": 0.01, "rows/s": 100.0 + step})
        if step % 10 == 0:
            rows.append({"stage": "fit", "step": step, "epoch": 0, "val/nll": shift + 2.0 / step})
    lines(run.metrics, rows)
    best = {"stage": "fit", "metric": "val/nll", "mode": "min"}
    command = ["mdlm", "--preset", "tiny", f"name={name}"]
    launch = {"time": START, "kind": "launch", "world": ranks, "device": "cpu", "host": "node1", "command": command}
    lines(
        run.events,
        [
            launch,
            {"time": START + 1, "kind": "stage", "stage": "fit", "step": 0, "steps": steps, "unit": "rows"},
            *(
                {"time": START + 1 + step, "kind": "best", "step": step, "value": shift + 2.0 / step, **best}
                for step in range(10, steps + 1, 10)
            ),
            {"time": START + 21, "kind": "save", "stage": "fit", "step": 20},
        ],
    )
    speeds = [
        {
            "time": START + 1 + step,
            "stage": "fit",
            "step": step,
            "step_seconds": [0.5] * ranks,
            "data_seconds": [0.1] * ranks,
            "wait_seconds": [0.0, *[0.2] * (ranks - 1)],
            "memory": [1_000_000_000 + rank for rank in range(ranks)],
        }
        for step in range(2, steps + 1, 2)
    ]
    lines(run.rank_speeds, speeds)
    return run
