"""Continues from a plain weight file of another program: its optimizer state and its step, as far as it has them."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.train.learner.learner import Learner
from samestep.train.record.progress import Progress
from samestep.train.weights.sources import read_extra

logger = logging.getLogger(__name__)
_OPTIMIZER_KEYS = ("optimizer_state_dict", "optimizer")


def continue_from_file(path: Path, learners: list[Learner], progress: Progress) -> None:
    """Load the optimizer state and the step of `path`; its weights are in the learner already."""
    extra = read_extra(path)
    missing = [] if _load_step(extra, progress) else ["the step (starting at 0)"]
    optimizer = next((extra[name] for name in _OPTIMIZER_KEYS if isinstance(extra.get(name), Mapping)), None)
    if optimizer is None or len(learners) != 1:
        missing.append("the optimizer's state (starting fresh)")
    else:
        _load_optimizer(path, learners[0], optimizer)
    for learner in learners:
        learner.updates = progress.step  # the learning rate goes on from there, with or without moments
    missing.append("the random state (starting fresh)")
    logger.warning("continuing from %s, which does not hold %s", path, ", ".join(missing))


def _load_step(extra: Mapping[str, Any], progress: Progress) -> bool:
    """Whether the file has a step, or a number of completed epochs."""
    for name in ("step", "global_step"):
        if isinstance(extra.get(name), int):
            progress.step = progress.current = extra[name]
            return True
    if isinstance(extra.get("epoch"), int):
        progress.step = progress.current = extra["epoch"] * progress.steps_per_epoch
        return True
    return False


def _load_optimizer(path: Path, learner: Learner, state: Mapping[str, Any]) -> None:
    try:
        learner.load_torch_optimizer(state)
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the optimizer state in {path} does not fit ({error}); use init_from={path} for its weights only"
        ) from None
