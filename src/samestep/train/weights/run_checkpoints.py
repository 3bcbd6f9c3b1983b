"""Which checkpoint of a run is meant, and which learners' weights a checkpoint holds."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import MANIFEST, Checkpoint, DamageError, find_checkpoints, read_manifest
from samestep.checkpoint.manifest import verify as damage_of
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.state import join_keys
from samestep.checkpoint.weight_files import save_weights
from samestep.core.config import listed
from samestep.core.errors import UserError
from samestep.core.json_files import expected_content
from samestep.core.rundir import RunDir
from samestep.train.learner.ema import Average
from samestep.train.learner.learner import Learner
from samestep.train.record.extension import read_done
from samestep.train.record.run_record import stage_folders
from samestep.world.world import World

logger = logging.getLogger(__name__)
MODEL = "model"
"""The name of a learner that has been given no other."""
LEARNERS = "learners"
"""The manifest's record of the learners."""
BASES = "bases"
"""The manifest's record of the bases of learners with adapters: by learner, the path of a file or checkpoint."""


@dataclass(frozen=True)
class LearnerParts:
    """Under which names a checkpoint holds what belongs to one learner."""

    state: str
    """Its own state, with its weights."""
    average: str | None = None
    """Its averaged weights, if the run averaged them."""


def learners_of(checkpoint: Path) -> dict[str, LearnerParts]:
    """The learners in a checkpoint, by name; none if it cannot be read."""
    try:
        recorded = read_manifest(checkpoint).about.get(LEARNERS, {})
        with expected_content(checkpoint / MANIFEST):
            return {name: LearnerParts(**parts) for name, parts in recorded.items()}
    except (DamageError, OSError, ValueError):
        return {}


def learner_parts(state: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    """By learner, the names in a checkpoint of its state and of its averaged weights: for the manifest."""
    averages = {part.learner: key for key, part in state.items() if isinstance(part, Average)}
    learners = {part.name: key for key, part in state.items() if isinstance(part, Learner)}
    return {name: {"state": key, "average": averages.get(name)} for name, key in learners.items()}


def write_weights(checkpoint: Path, files: Mapping[str, Sequence[Path]], mark: str = "") -> None:
    """Write plain weight files from an intact checkpoint: `files` are by the key of a learner's state in it. Called on
    rank 0 alone."""
    for key, targets in files.items():
        weights = read_tensors(checkpoint, join_keys((key, "model")), verify=False) if targets else {}
        for target in targets:
            save_weights(target, weights, mark=mark)


def learners_of_run(rundir: RunDir) -> set[str]:
    checkpoints = (found for folder in _stage_folders(rundir, None) for found in find_checkpoints(folder))
    return {name for checkpoint in checkpoints for name in learners_of(checkpoint.path)}


def choose_learner(known: Collection[str], wanted: str | None, where: str) -> str:
    """The wanted learner; without a wish `model`, or the only one there is."""
    if wanted is None:
        wanted = MODEL if MODEL in known else next(iter(known)) if len(known) == 1 else None
    if wanted in known:
        return str(wanted)
    if not known:
        raise UserError(f"{where} has no learner, so there are no weights to use")
    names = listed([repr(name) for name in known], "or")
    if wanted is None:
        raise UserError(f"{where} has several learners; say which one is meant: {names}")
    raise UserError(f"{where} has no learner {wanted!r}; it has {names}")


def choose_checkpoint(
    rundir: RunDir,
    which: str | int = "last",
    *,
    learner: str | None = None,
    stage: str | None = None,
    damage_of: Callable[[Path], str | None] = damage_of,
) -> Path:
    """The `last` or `best` intact checkpoint of a run, or that of a step.

    It is one of the last stage that has checkpoints with this learner (None: with any), or of `stage`. `best` goes by
    the metric that the stage names; the newest counts as the best where there is none. The `last` of a stage that
    ended with `best_at_end` is its best.
    """
    step = _step(which)
    stages = _stage_folders(rundir, stage)
    known: set[str] = set()
    intact = 0
    for folder in stages:
        found = [(checkpoint, learners_of(checkpoint.path)) for checkpoint in find_checkpoints(folder)]
        known |= {name for _, learners in found for name in learners}
        intact += sum(checkpoint.damage is None for checkpoint, _ in found)
        for checkpoint in (checkpoint for checkpoint, _ in found if checkpoint.damage):
            logger.warning("the checkpoint %s is damaged and not used: %s", checkpoint.path, checkpoint.damage)
        fitting = [checkpoint for checkpoint, learners in found if (learner in learners if learner else learners)]
        meant = "best" if which == "last" and ended_with_best(rundir, folder.name) else which
        for checkpoint in _in_order(fitting, meant, step, folder):
            damage = damage_of(checkpoint.path)
            if damage is None:
                return checkpoint.path
            if step is not None:
                raise UserError(f"the checkpoint {checkpoint.path} is damaged: {damage}; use another one")
            logger.warning("the checkpoint %s is damaged and not used: %s", checkpoint.path, damage)
    if intact and (not known or (learner is not None and learner not in known)):
        where = f"the run {rundir.path}" if stage is None else f"stage {stage!r} of the run {rundir.path}"
        choose_learner(sorted(known), learner, where)
    raise UserError(f"the run {rundir.path} has no intact checkpoint yet; train it first")


def choose_together(world: World, rundir: RunDir, which: str | int = "last", **options: Any) -> Path:
    """The same for all ranks: rank 0 chooses, as a run that still trains may save another one meanwhile, and every rank
    opens it under its own path of the run. `options` are those of `choose_checkpoint`. Collective."""

    def choose() -> str | None:
        return str(choose_checkpoint(rundir, which, **options).relative_to(rundir.path)) if world.is_main else None

    return rundir.path / world.run_on_all_ranks(f"choosing a checkpoint of {rundir.path}", choose)[0]


def _step(which: str | int) -> int | None:
    if which in ("best", "last"):
        return None
    if isinstance(which, bool) or not str(which).isdigit():
        raise UserError(f"which checkpoint is wanted? Write best, last or the number of a step, not {which!r}")
    return int(which)


def _stage_folders(rundir: RunDir, stage: str | None) -> list[Path]:
    """The folders of checkpoints, that of the last stage first."""
    folders = stage_folders(rundir)[::-1]
    if stage is None:
        return folders
    if stage not in [folder.name for folder in folders]:
        names = listed([repr(folder.name) for folder in folders]) if folders else "none"
        raise UserError(f"the run {rundir.path} has no checkpoints of a stage {stage!r}; it has those of {names}")
    return [rundir.checkpoints(stage)]


def ended_with_best(rundir: RunDir, stage: str) -> bool:
    """Whether a stage that is done took back its best state at the end."""
    done = read_done(rundir, stage) or {}
    return bool(done.get("config", {}).get("best_at_end"))


def _in_order(found: Sequence[Checkpoint], which: str | int, step: int | None, folder: Path) -> list[Checkpoint]:
    """The checkpoints of a stage that are meant, the first choice first."""
    newest = sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)
    if step is not None and found:
        wanted = [checkpoint for checkpoint in found if checkpoint.step == step]
        if not wanted:
            steps = listed([f"{checkpoint.step}" for checkpoint in found])
            raise UserError(f"there is no checkpoint of step {step} in {folder}; those kept are of step {steps}")
        return wanted
    return best_first(newest) if which == "best" else newest


def metric_mode(checkpoints: Iterable[Checkpoint]) -> str:
    """Whether the smallest metric of these checkpoints is the best, or the largest: `min` or `max`."""
    modes = (found.about.get("metric_mode") for found in checkpoints)
    return next((mode for mode in modes if mode), "min")


def best_first(newest_first: Sequence[Checkpoint]) -> list[Checkpoint]:
    """By the metric of the newest checkpoint that has one, the best first; those without it come last."""
    about = next((checkpoint.about for checkpoint in newest_first if checkpoint.metric is not None), None)
    if about is None:
        return list(newest_first)
    mode, name = about.get("metric_mode") or "min", about.get("metric_name") or ""
    ranked = Retention(mode=mode, metric=name).ranked(newest_first)
    return [*ranked, *(checkpoint for checkpoint in newest_first if checkpoint not in ranked)]
