"""What a user named to begin with: a run, one of its checkpoints, or a plain weight file."""

from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path

from torch import nn

from samestep.checkpoint.manifest import verify as damage_of
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.train.weights.open_weights import (
    SourceFill,
    checkpoint_weights,
    fitting_tensors,
    is_checkpoint,
    is_run,
    open_weights,
)
from samestep.train.weights.run_checkpoints import choose_learner, choose_together, learners_of, learners_of_run
from samestep.world.world import World


class NamedWeights:
    """The weights at a path. Rank 0 looks, and chooses a run's checkpoint for all ranks; then every rank reads it.

    What is said to be collective must be asked for by all ranks alike.
    """

    def __init__(self, path: Path, world: World, shared: bool = True) -> None:
        """`shared`: all ranks see the path; else rank 0 reads it for all."""
        self.path, self._world, self._shared = path, world, shared
        self._checkpoints: dict[str, Path] = {}
        self._damage_of = cache(damage_of)  # two learners may be in one checkpoint, which is read in full once

    @cached_property
    def is_gone(self) -> bool:
        """Whether there is nothing at the path. Collective."""
        return bool(self._on_main(lambda: not self.path.exists()))

    @cached_property
    def is_file(self) -> bool:
        """Whether it holds the weights of one network, which it does not name. Collective."""
        return bool(self._on_main(self._is_file))

    @cached_property
    def learners(self) -> list[str]:
        """The learners in a run or a checkpoint. Collective."""
        found: list[str] = self._on_main(lambda: sorted(self._learners()))
        return found

    def learner_like(self, name: str) -> str:
        """The learner of that name, or else the only one there is. Collective."""
        if self.is_file or name in self.learners:
            return name
        return choose_learner(self.learners, None if len(self.learners) == 1 else name, str(self.path))

    def fill_for(self, learner: str) -> SourceFill:
        """What fills a module with the weights of a learner. Collective."""
        path = self.path if self.is_file else self._checkpoint(learner)
        weights = None
        if self._shared or self._world.is_main:
            weights = open_weights(path) if self.is_file else checkpoint_weights(path, learner, verify=False)
        return SourceFill(weights, path, self._world, self._shared)

    def describe(self, learner: str) -> str:
        """Its path, and of a run the checkpoint. Collective."""
        if self.is_file or self._checkpoint(learner) == self.path:
            return str(self.path)
        path = self._checkpoint(learner)
        return f"{self.path}, {path.parent.name}/{path.name}"

    def misfit(self, module: nn.Module) -> str:
        """Why a plain weight file does not fit this module; empty if it does."""
        weights = open_weights(self.path)
        try:
            fitting_tensors(module, weights, f"weights of {self.path}")
        except UserError as error:
            return str(error)
        return ""

    def _is_file(self) -> bool:
        if not self.path.exists():
            raise UserError(f"{self.path} does not exist; give a run directory, a checkpoint folder, or a weight file")
        return not is_run(self.path) and not is_checkpoint(self.path)

    def _learners(self) -> set[str]:
        return set(learners_of(self.path)) if is_checkpoint(self.path) else learners_of_run(RunDir(self.path))

    def _checkpoint(self, learner: str) -> Path:
        """The same for all ranks, and intact: a run that is still training may save another one meanwhile."""
        if learner not in self._checkpoints:
            self._checkpoints[learner] = self._choose(learner)
        return self._checkpoints[learner]

    def _choose(self, learner: str) -> Path:
        if not self._on_main(lambda: is_checkpoint(self.path)):
            return choose_together(self._world, RunDir(self.path), learner=learner, damage_of=self._damage_of)
        damage = self._on_main(lambda: self._damage_of(self.path))
        if damage is not None:
            raise UserError(f"the checkpoint {self.path} is damaged: {damage}; use another one")
        return self.path

    def _on_main(self, work: Callable[[], Json]) -> Json:
        doing = f"opening {self.path}"
        return self._world.run_on_all_ranks(doing, lambda: work() if self._world.is_main else None)[0]
