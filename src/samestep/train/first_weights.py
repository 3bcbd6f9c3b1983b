"""Where a stage's learners get their first weights from: an earlier stage, what the user named, or the run's seed.

`init_from` and `continue_from` are for the first learner called `model`, in whatever stage that is, and for no other: a
later stage begins with what an earlier one learned if it says so (`Stage(start="align")`), and afresh otherwise.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.checkpoint.manifest import find_checkpoints
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.sources import CheckpointPart, parts_of
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.parallel.wrap import Fill
from samestep.train.config import Config
from samestep.train.weights import fill, open_weights
from samestep.world.world import World

logger = logging.getLogger(__name__)
MODEL = "model"
"""The learner that `init_from` and `continue_from` are for."""
OF_THE_RUN = ("progress", "window", "epoch", "random")
"""What the runtime itself keeps in every checkpoint, beside the task's own state."""
_TAKEN = "first_weights"


def named_source(config: Config) -> str | None:
    """What the user named to begin with."""
    return config.continue_from or config.init_from


class FirstWeights:
    """The first weights of one stage."""

    def __init__(
        self,
        config: Any,
        world: World,
        rundir: RunDir,
        stage: str,
        *,
        start: str | None,
        resumed: bool,
        shared: bool,
        frozen: Callable[[], dict[str, Json]],
        freeze: Callable[[str, Callable[[], Json]], Json],
    ) -> None:
        """`resumed`: the stage has a checkpoint, with which all weights come. `shared`: all ranks see the run's folder.
        `frozen` is what the first launch fixed for all stages, and `freeze` fixes something for this one."""
        self._config, self._world, self._rundir, self._stage = config, world, rundir, stage
        self._start, self._resumed, self._shared = start, resumed, shared
        self._frozen, self._freeze = frozen, freeze
        self._known: list[str] = []
        self.told: dict[str, str] = {}
        """By learner, where its weights come from, in words."""

    def of(self, learner: str) -> Fill | None:
        """What fills a learner's module; None: it keeps what it was built with."""
        if self._start is not None:
            return self._of_stage(learner, self._start)
        source = named_source(self._config)
        if not source or learner != MODEL or self._taken_by_another():
            self.told[learner] = f"drawn from seed {self._config.seed}"
            return None
        self._freeze(_TAKEN, lambda: source)
        self.told[learner] = source
        if self._resumed:
            return come_with_checkpoint
        weights = open_weights(Path(source), learner)
        return lambda module: fill(module, weights, f"weights of {source}")

    def is_taken_here(self) -> bool:
        """Whether it is this stage that begins with what the user named."""
        return bool(named_source(self._config)) and self.told.get(MODEL) == named_source(self._config)

    def check_taken(self, stage: str, is_last: bool) -> None:
        """Say that a stage does not use what the user named, and refuse if no later one can; refuse a start for no
        learner."""
        if self._start is not None and not any(text.startswith("stage") for text in self.told.values()):
            raise UserError(
                f"stage {stage!r} is to start with what stage {self._start.partition(':')[0]!r} learned, but that has "
                f"no weights of {' or '.join(map(repr, self.told)) or 'any learner'}; it has state of "
                f"{', '.join(self._known) or 'none'}"
            )
        source = named_source(self._config)
        if not source or self.is_taken_here() or self._taken_by_another():
            return
        self._freeze(_TAKEN, lambda: None)
        option = "continue_from" if self._config.continue_from else "init_from"
        if is_last:
            raise UserError(
                f"{option}={source} was given, but no stage of this recipe has a learner named {MODEL!r} to begin with "
                f"it; leave it out, or name the learner so"
            )
        if self._world.is_main:
            logger.warning("%s=%s is not used by stage %r, which has no learner named %r", option, source, stage, MODEL)

    def _taken_by_another(self) -> bool:
        """Whether an earlier stage began with it; those of runs of older versions did so if they trained anything."""
        others = (fixed for stage, fixed in self._frozen().items() if stage != self._stage)
        return any(fixed.get(_TAKEN, "plan" in fixed) for fixed in others)

    def _of_stage(self, learner: str, start: str) -> Fill | None:
        stage, _, which = start.partition(":")
        self.told[learner] = f"stage {stage!r}"
        if self._resumed:
            return come_with_checkpoint
        path = self._checkpoint(stage, which or "last")
        known = self._world.share(sorted(parts_of(path)) if self._world.is_main else None)
        self._known = [part for part in known if part not in OF_THE_RUN]
        if learner not in known:
            self.told[learner] = f"drawn from seed {self._config.seed}"
            return None
        self.told[learner] += f", {path.name}"
        if not path.exists():  # not all ranks see the disk; rank 0 hands its weights on
            return come_with_checkpoint
        weights = CheckpointPart(path, f"{learner}/model", verify=False)
        return lambda module: fill(module, weights, f"weights of stage {stage!r}")

    def _checkpoint(self, stage: str, which: str) -> Path:
        """The last or the best checkpoint of an earlier stage, verified, the same on all ranks."""
        if which not in ("last", "best"):
            raise UserError(f"a stage starts with an earlier stage's 'last' or 'best' weights, not {which!r}")
        folder = self._rundir.checkpoints(stage)
        mode = self._world.share(_mode(folder) if self._world.is_main else None)
        store = Store(folder, self._world, keep=Retention(mode=mode), shared=self._shared)
        found = store.best() if which == "best" else store.newest()
        if found is None:
            lacks = "no checkpoint with a validation figure" if which == "best" else "no checkpoint"
            raise UserError(
                f"stage {self._stage!r} starts with what stage {stage!r} learned, but that has left {lacks}; put "
                f"{folder} back, or name a stage that comes before it"
            )
        return found.path


def _mode(folder: Path) -> str:
    modes = (found.about.get("figure_mode") for found in find_checkpoints(folder))
    return next((mode for mode in modes if mode), "min")


@torch.no_grad()
def come_with_checkpoint(module: nn.Module) -> None:
    """Fills a module whose weights are yet to be restored with what nobody can mistake for weights."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)
