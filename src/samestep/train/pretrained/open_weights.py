"""Where weights come from: a run, one of its checkpoints, a plain weight file, or a folder of safetensors."""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samestep.checkpoint.manifest import MANIFEST, Checkpoint, find_checkpoints
from samestep.checkpoint.manifest import verify as damage_of
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.weight_files import check_shapes, open_weight_file
from samestep.checkpoint.weight_sources import CheckpointWeights, WeightSource, read_all
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.run_record import RunRecord

logger = logging.getLogger(__name__)
OUTER = "model."
"""Published weights are often those of a larger module that calls the network `model`."""


def find_weights(source: Path, learner: str = "model") -> dict[str, Tensor]:
    """The full weights of a learner, from whatever `source` names."""
    return read_all(open_weights(source, learner))


def open_weights(source: Path, learner: str = "model", *, verify: bool = True) -> WeightSource:
    """The weights of a learner, from whatever `source` names, left on the disk until they are copied.

    `verify`: read every byte of a checkpoint first, and refuse a damaged one.
    """
    if not source.exists():
        raise UserError(f"{source} does not exist; give a run directory, a checkpoint folder, or a weight file")
    if is_run(source):
        return CheckpointWeights(final_checkpoint(RunDir(source)), f"{learner}/model", verify=False)
    if is_checkpoint(source):
        return CheckpointWeights(source, f"{learner}/model", verify=verify)
    weights, _, notes = open_weight_file(source)
    for note in notes:
        logger.warning("%s", note)
    return weights


def read_extra(path: Path) -> Mapping[str, Any]:
    """What a plain weight file holds beside weights."""
    return open_weight_file(path).extra


def fill(module: nn.Module, source: WeightSource, what: str) -> None:
    """Copy weights into a module on its device, tensor by tensor; refuse, before the first, any that do not fit."""
    own = module.state_dict()
    names = names_in(source, own)
    targets = {names[name]: target for name, target in own.items()}
    check_shapes(source.layout, {name: target.shape for name, target in targets.items()}, what)
    source.fill(targets)


def names_in(source: WeightSource, own: Collection[str]) -> dict[str, str]:
    """The name in the source of each weight of a network: the same, or with `model.` in front."""
    has_outer = any(OUTER + name in source.layout for name in own) and not any(name in source.layout for name in own)
    return {name: OUTER + name if has_outer else name for name in own}


def final_checkpoint(rundir: RunDir) -> Path:
    """What a run has learned: the newest intact checkpoint of its last stage that has one. With `best_at_end`, the best
    one if the stage is done."""
    record = RunRecord.read(rundir)
    best_at_end = record is not None and record.config.get("best_at_end", False)
    stages = sorted(rundir.checkpoints("x").parent.glob("*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for stage in stages:
        newest_first = sorted(find_checkpoints(stage), key=lambda found: found.step, reverse=True)
        retention = Retention(mode=metric_mode(newest_first))
        best_first = retention.ranked(newest_first) if best_at_end and rundir.done(stage.name).exists() else []
        for checkpoint in [*best_first, *newest_first]:
            if damage_of(checkpoint.path) is None:
                return checkpoint.path
    raise UserError(f"the run {rundir.path} has no intact checkpoint yet; train it first")


def metric_mode(checkpoints: Iterable[Checkpoint]) -> str:
    """Whether the smallest metric of these checkpoints is the best, or the largest: `min` or `max`."""
    modes = (found.about.get("figure_mode") for found in checkpoints)
    return next((mode for mode in modes if mode), "min")


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint."""
    return (path / MANIFEST).exists()


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory: a published model has a config.json too, but of another kind."""
    try:
        return RunRecord.read(RunDir(path)) is not None
    except (ValueError, OSError):
        return False
