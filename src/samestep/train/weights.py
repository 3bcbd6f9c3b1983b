"""Where weights come from: a run, one of its checkpoints, or a plain weight file."""

import logging
from pathlib import Path

from torch import Tensor

from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import MANIFEST, find_checkpoints, verify
from samestep.checkpoint.plain import load_weights
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir

logger = logging.getLogger(__name__)


def find_weights(source: Path, learner: str = "model") -> dict[str, Tensor]:
    """The whole weights of a learner, from whatever `source` names."""
    if not source.exists():
        raise UserError(f"{source} does not exist; give a run directory, a checkpoint folder, or a weight file")
    if RunDir(source).config.exists():
        source = newest_checkpoint(RunDir(source))
    if (source / MANIFEST).exists():
        return read_tensors(source, f"{learner}/model")
    weights, _, notes = load_weights(source)
    for note in notes:
        logger.warning("%s", note)
    return weights


def newest_checkpoint(rundir: RunDir) -> Path:
    """The newest whole checkpoint of a run, of its last stage that has one."""
    stages = sorted(rundir.checkpoints("x").parent.glob("*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for stage in stages:
        for checkpoint in sorted(find_checkpoints(stage), key=lambda found: found.step, reverse=True):
            if verify(checkpoint.path) is None:
                return checkpoint.path
    raise UserError(f"the run {rundir.path} has no whole checkpoint yet; train it first")
