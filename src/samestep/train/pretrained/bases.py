"""The bases of learners with adapters: in no checkpoint, so a stage records where each is read from at a resume.

A base out of a plain weight file, or of an earlier stage, is read from there again. Of one out of another run, which
may go on and remove its checkpoint, the stage stores a copy among its artifacts. Other bases come with the recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir
from samestep.train.first_launch import FirstLaunch
from samestep.train.pretrained.named_weights import NamedWeights
from samestep.train.pretrained.open_weights import SourceFill, read_again
from samestep.world.world import World

_KEY = "first_weights_of"
"""What is fixed of a learner with adapters: which part of it the first weights are, the path of its base, and whether
that is relative to the run directory."""


@dataclass
class Bases:
    """Those of one stage."""

    world: World
    rundir: RunDir
    stage: str
    shared: bool
    """Whether all ranks see the run directory."""
    first_launch: FirstLaunch
    paths: dict[str, Path] = field(default_factory=dict)
    """By learner, the file or checkpoint that its base is read from at a resume."""

    def fix(self, learner: str, part: str) -> str:
        """Record which part of a learner its first weights are: its `base`, its `adapters` or `both`."""
        path, run = self.paths.get(learner, Path()).absolute(), self.rundir.path.absolute()
        record: list[Json] = [part, "", False]
        if learner in self.paths:
            inside = path.is_relative_to(run)
            record = [part, str(path.relative_to(run) if inside else self.paths[learner]), inside]
        self.first_launch.change(f"{_KEY}/{learner}", record)
        return part

    def find(self, learner: str, stage: str) -> str:
        """The part that a stage has recorded, empty where there is none; its base is that of this stage, too."""
        record = self.first_launch.of_all_stages().get(stage, {}).get(f"{_KEY}/{learner}", ["", ""])
        path = _base_path(record, self.rundir)
        if path is not None:
            self.paths[learner] = path
        return str(record[0])

    def fill(self, learner: str) -> SourceFill | None:
        """What fills a network with a learner's base; None: it comes with the recipe. Collective."""
        path = self.paths.get(learner)
        if path is None:
            return None
        named, what = NamedWeights(path, self.world, self.shared), f"the base of learner {learner!r}"
        if named.is_gone:
            raise UserError(f"{what} is in no checkpoint, and {path}, which holds it, does not exist; put it back")
        return read_again(lambda: named.fill_for(named.learner_like(learner)), what)

    def copy_of(self, learner: str) -> Path:
        """Where a copy is stored."""
        return self.rundir.artifacts(self.stage) / f"base_{learner}.safetensors"

    def is_copied(self, learner: str) -> bool:
        """Whether this stage has to store a copy."""
        return self.paths.get(learner) == self.copy_of(learner)


def base_at(learner: str, path: Path) -> dict[str, Json]:
    """What is fixed of a stage whose learner has its base from this path."""
    return {f"{_KEY}/{learner}": ["base", str(path.absolute()), False]}


def with_bases_of(run: RunDir, fixed: Mapping[str, Json]) -> dict[str, Json]:
    """What is fixed of a stage of a run, for another run directory: its bases are those of that run."""
    records = {name: record for name, record in fixed.items() if name.startswith(f"{_KEY}/")}
    absolute = {name: [record[0], str(_base_path(record, run) or ""), False] for name, record in records.items()}
    return {**fixed, **absolute}


def _base_path(record: list[Json], run: RunDir) -> Path | None:
    _, path, *inside = record  # runs of older versions have paths from the working directory alone
    if not path:
        return None
    return run.path.absolute() / path if any(inside) else Path(path)
