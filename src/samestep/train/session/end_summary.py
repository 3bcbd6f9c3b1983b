"""What is printed when a run is done: what was trained, how long it took, where the files are, and what can follow."""

import logging
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from samestep.core.durations import format_spent
from samestep.core.json_files import DamagedFile, JsonLines
from samestep.core.output import format_speed
from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.api.recipe import Recipe, Stage, no_validation
from samestep.train.logging.console import format_metrics
from samestep.train.record.extension import read_done

logger = logging.getLogger(__name__)
_FILES = ("metrics.jsonl", "samples.jsonl", "checkpoints", "tensorboard", "weights", "artifacts", "logs")


def end_summary(
    recipe: Recipe, rundir: RunDir, stages: Sequence[Stage], benches: Sequence[Bench], seconds: float
) -> dict[str, str]:
    """Name to value, in reading order, on rank 0. `benches` are those of the stages that ran in this launch, which
    took so many seconds."""
    rows = _rows(rundir.metrics)
    here = {bench.stage: bench for bench in benches}
    lines = {}
    for stage in stages:
        own = [row for row in rows if row.get("stage") == stage.name]
        lines[f"stage {stage.name}"] = ", ".join(_of_stage(rundir, stage, own, here.get(stage.name)))
    launches = sum(event.get("kind") == "launch" for event in _rows(rundir.events))
    lines["duration"] = format_spent(seconds) + (f" (this launch; the run had {launches})" if launches > 1 else "")
    files = [name for name in _FILES if (rundir.path / name).exists()]
    lines["files"] = f"{_short(rundir.path)} ({', '.join(files)})"
    lines["next"] = "\n".join(next_commands(recipe, stages, rundir))
    return lines


def next_commands(recipe: Recipe, stages: Sequence[Stage], rundir: RunDir) -> list[str]:
    """What can be done with a run of this recipe that is done. Without an evaluation of its own it validates again."""
    can_evaluate = recipe.evaluate is not None or any(stage.validate is not no_validation for stage in stages[-1:])
    verbs = ["sample"] * (recipe.sample is not None) + ["evaluate"] * can_evaluate
    run = shlex.quote(_short(rundir.path))
    return [*(f"samestep {verb} {run}" for verb in verbs), f"samestep export {run} FOLDER"]


def _short(path: Path) -> str:
    """Relative to the working directory, where it lies in it."""
    with suppress(OSError, ValueError):  # the working directory was deleted, or is elsewhere
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, none where it is damaged: a run that is done does not fail by that."""
    try:
        return list(JsonLines(path))
    except (OSError, DamagedFile) as error:
        logger.warning("the summary leaves out what it cannot read: %s", error)
        return []


def _of_stage(rundir: RunDir, stage: Stage, rows: Sequence[Mapping[str, Any]], bench: Bench | None) -> list[str]:
    done = read_done(rundir, stage.name) or {}
    steps = done.get("step", 0)
    parts = [f"{steps:,} {'step' if steps == 1 else 'steps'}"]
    if bench is not None:
        parts[0] += f" in {format_spent(bench.progress.seconds)}"
        if count := sum(learner.skipped_steps.count for learner in bench.learners):
            parts.append(f"{count:,} skipped")
    if speeds := [row[f"{stage.unit}/s"] for row in rows if f"{stage.unit}/s" in row]:
        parts.append(f"{format_speed(statistics.median(speeds))} {stage.unit}/s")
    return parts + _best(stage, rows)


def _best(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The best value of the stage's metric, and the step after which it was first reached."""
    if stage.best is None:
        return []
    name, mode = stage.best
    found = [(row[name], row["step"]) for row in rows if math.isfinite(row.get(name, math.nan))]
    if not found:
        return []
    sign = 1 if mode == "min" else -1
    value, step = min(found, key=lambda pair: sign * pair[0])
    return [f"best {format_metrics({name: value})} at step {step:,}"]
