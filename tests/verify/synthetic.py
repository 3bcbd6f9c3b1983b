"""Evidence of a run that was not executed, as ranks would have recorded it; tests change some lines of it."""

from collections.abc import Callable, Iterator
from typing import Any

from samestep.data.order import micro_batches
from samestep.verify.trace import Line, RecordedLaunch

Spoil = Callable[[int, Line], None]
"""Takes a rank and one of its lines, and may change the line."""


def nothing(rank: int, line: Line) -> None:
    """Leaves a run unchanged."""


def launch(
    world: int = 1,
    spoil: Spoil = nothing,
    *,
    steps: int = 4,
    start: int = 0,
    batch: int = 7,
    rows: int = 3,
    stages: tuple[str, ...] = ("fit",),
) -> RecordedLaunch:
    """A launch at this world size that starts at step `start` of its first stage."""
    return RecordedLaunch.from_lines(
        [list(_rank(rank, world, spoil, steps, start, batch, rows, stages)) for rank in range(world)]
    )


def _rank(
    rank: int, world: int, spoil: Spoil, steps: int, start: int, batch: int, rows: int, stages: tuple[str, ...]
) -> Iterator[Line]:
    for number, stage in enumerate(stages):
        first = start if number == 0 else 0
        yield {"kind": "start", "stage": stage, "step": first, "world": world, "pid": rank}
        for step in range(first, steps):
            lines: list[Line] = [
                _update(rank, world, stage, step, batch, rows),
                {"kind": "returned", "stage": stage, "step": step},
            ]
            if step == steps - 1:
                lines.append(_validation(rank, world, stage, step))
            lines.append(_closing_line(stage, step, {"val/error": 0.5} if step == steps - 1 else {}))
            for line in lines:
                spoil(rank, line)
                if line:
                    yield line


def _update(rank: int, world: int, stage: str, step: int, batch: int, rows: int) -> Line:
    spans = micro_batches(batch, rank, world, rows)
    mine = [step * batch + place for start, stop in spans for place in range(start, stop)]
    return {
        "kind": "update",
        "stage": stage,
        "learner": "model",
        "step": step,
        "before": f"hash {step - 1}",
        "hash": f"hash {step}",
        "norm": 5.0,
        "ids": [[0, index] for index in mine],
        "rows": {"error": [1.0 + 0.1 * index for index in mine]},
        "data": [[index * 7919, 2] for index in mine],
        "sizes": [stop - start for start, stop in spans],
        "weights": {"rows": float(batch)},
        "gradients": {"weight": [4.0, 1.0], "bias": [3.0, -1.0]},
        "drew": [],
        "batch_norms": [],
    }


def _validation(rank: int, world: int, stage: str, step: int) -> Line:
    spans = micro_batches(5, rank, world, 2)
    ids = [[2**31 - 1, place] for start, stop in spans for place in range(start, stop)]
    return {"kind": "validation", "stage": stage, "step": step, "ids": ids, "metrics": {"error": 0.5}}


def _closing_line(stage: str, step: int, metrics: dict[str, float]) -> Line:
    state: dict[str, Any] = {"model": {"hash": f"state {step}", "prints": {"model/weight": [10.0, 2.0]}}}
    return {"kind": "step", "stage": stage, "step": step, "state": state, "metrics": metrics, "own": {}}


def draw(step: int, token: int, margin: float, index: int = 3, position: int = 0) -> Line:
    """One sampled token."""
    return {
        "kind": "draw",
        "stage": "fit",
        "purpose": "move",
        "step": step,
        "position": position,
        "ids": [[0, index]],
        "tokens": [token],
        "margins": [margin],
    }
