"""Continuing from a plain weight file of another program: weights and whatever state it holds, saying what it lacks."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.checkpoint.weight_files import open_weight_file
from samestep.core.errors import UserError
from samestep.train.learner.learner import Learner
from samestep.train.loop import Progress

logger = logging.getLogger(__name__)
_OPTIMIZER = ("optimizer_state_dict", "optimizer")


def continue_from_file(path: Path, learners: list[Learner], progress: Progress) -> None:
    """Take the optimizer state and the step out of `path`; its weights are in the learner already."""
    extra = open_weight_file(path).extra
    missing = [] if _adopt_step(extra, progress) else ["the step (starting at 0)"]
    optimizer = next((extra[name] for name in _OPTIMIZER if isinstance(extra.get(name), Mapping)), None)
    if optimizer is None or len(learners) != 1:
        missing.append("the optimizer's state (starting fresh)")
    else:
        _adopt_optimizer(path, learners[0], optimizer)
    for learner in learners:
        learner.updates = progress.step  # the learning rate goes on from there, with or without moments
    missing.append("the random state (starting fresh)")
    logger.warning("continuing from %s, which does not hold %s", path, ", ".join(missing))


def _adopt_step(extra: Mapping[str, Any], progress: Progress) -> bool:
    """A step is a step; an epoch is one that was completed."""
    for name in ("step", "global_step"):
        if isinstance(extra.get(name), int):
            progress.step = extra[name]
            return True
    if isinstance(extra.get("epoch"), int):
        progress.step = extra["epoch"] * progress.steps_per_epoch
        return True
    return False


def _adopt_optimizer(path: Path, learner: Learner, state: Mapping[str, Any]) -> None:
    try:
        learner.load_plain_optimizer(state)
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the optimizer state in {path} does not fit ({error}); use init_from={path} for its weights only"
        ) from None
