"""The bases of learners with adapters: in no checkpoint, so a stage records where each is read from at a resume.

A base out of a plain weight file, or of an earlier stage, is read from there again. Of one out of another run, which
may go on and remove its checkpoint or be deleted, the stage stores a copy among its artifacts. Other bases come with
the recipe.
"""

from dataclasses import dataclass, field
from pathlib import Path

from samestep.checkpoint.manifest import read_manifest
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.rundir import RunDir
from samestep.train.record.first_launch import FirstLaunch, StageInfo
from samestep.train.record.fixed_values import read_fixed
from samestep.train.weights.run_checkpoints import BASES
from samestep.train.weights.sources import NamedWeights, SourceFill, is_checkpoint, is_run, read_again, run_of

_KEY = "first_weights_of"
"""What is fixed of a learner with adapters: which part of it the first weights are, the path of its base, and whether
that is relative to the run directory."""


@dataclass
class Bases:
    """Those of one stage."""

    stage: StageInfo
    paths: dict[str, Path] = field(default_factory=dict)
    """By learner, the file or checkpoint that its base is read from at a resume."""

    def fix(self, learner: str, part: str) -> str:
        """Record which part of a learner its first weights are: its `base`, its `adapters` or `both`."""
        path, run = self.paths.get(learner, Path()).absolute(), self.stage.rundir.path.absolute()
        record: list[Json] = [part, "", False]
        if learner in self.paths:
            inside = path.is_relative_to(run)
            record = [part, str(path.relative_to(run) if inside else self.paths[learner]), inside]
        self.stage.first_launch.change(f"{_KEY}/{learner}", record)
        return part

    def find(self, learner: str, stage: str) -> str:
        """The part that a stage has recorded, empty where there is none; its base is that of this stage, too."""
        record = self.stage.first_launch.of_all_stages().get(stage, {}).get(f"{_KEY}/{learner}", ["", "", False])
        path = _base_path(record, self.stage.rundir)
        if path is not None:
            self.paths[learner] = path
        return str(record[0])

    def fill(self, learner: str) -> SourceFill | None:
        """What fills a network with a learner's base; None: it comes with the recipe. Collective."""
        path = self.paths.get(learner)
        if path is None:
            return None
        named, what = NamedWeights(path, self.stage.world, self.stage.is_shared), f"the base of learner {learner!r}"
        if named.is_gone:
            raise UserError(f"{what} is in no checkpoint, and {path}, which holds it, does not exist; put it back")
        return read_again(lambda: named.fill_for(named.learner_like(learner)), what)

    def behind(self, adapters: SourceFill, learner: str) -> SourceFill | None:
        """What fills a network with the base that adapters out of another run, or of a checkpoint, were trained on.
        None: it comes with the recipe. Collective."""
        if not self.stage.world.share(is_checkpoint(adapters.path)):
            return None

        def find() -> str | None:
            return str(find_base(adapters.path, learner) or "") if self.stage.world.is_main else None

        found = self.stage.world.run_on_all_ranks(f"finding the base of {adapters.path}", find)[0]
        if not found:
            return None
        self.paths[learner] = Path(found)
        fill = self.fill(learner)
        if self.stage.world.share(any(is_run(folder) for folder in Path(found).absolute().parents)):
            self.paths[learner] = self.copy_of(learner)
        return fill

    def copy_of(self, learner: str) -> Path:
        return self.stage.rundir.artifacts(self.stage.name) / f"base_{learner}.safetensors"

    def is_copied(self, learner: str) -> bool:
        """Whether this stage has to store a copy."""
        return self.paths.get(learner) == self.copy_of(learner)


def find_base(checkpoint: Path, learner: str) -> Path | None:
    """The base of a learner with adapters in a checkpoint: where its run has it, in the checkpoint's folder, or where
    it was in training. None: it comes with the recipe, or no base is recorded."""
    about, run = read_manifest(checkpoint).about, run_of(checkpoint)
    fixed = read_fixed(run).get(str(about.get("stage")), {}) if run else {}
    in_run = _base_path(fixed.get(f"{_KEY}/{learner}", ["", "", False]), run) if run else None
    recorded = about.get(BASES, {}).get(learner)
    there = [checkpoint / Path(recorded).name, Path(recorded)] if recorded else []
    places = [in_run, *there] if in_run else there
    if not places:
        return None
    found = next((path for path in places if path.exists()), None)
    if found is None:
        raise UserError(
            f"the adapters of learner {learner!r} in {checkpoint} stand on a base that is not there: put back "
            f"{in_run or places[-1]}, or copy it into {checkpoint}"
        )
    return found


def fix_base(first_launch: FirstLaunch, learner: str, path: Path) -> None:
    """Fix where a stage reads the base of a learner from."""
    first_launch.change(f"{_KEY}/{learner}", ["base", str(path.absolute()), False])


def _base_path(record: list[Json], run: RunDir) -> Path | None:
    _, path, is_inside = record
    if not path:
        return None
    return run.path.absolute() / path if is_inside else Path(path)
