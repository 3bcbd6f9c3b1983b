"""What the first launch of a stage fixes for all later ones, in first_launch.json: batch, steps, hashes of networks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samestep.core.json_files import Json, write_json
from samestep.core.rundir import RunDir
from samestep.train.record.fixed_values import read_fixed
from samestep.world.world import World


@dataclass(frozen=True)
class FirstLaunch:
    """What was fixed for one stage. Every rank asks alike; rank 0 reads and writes the file."""

    world: World
    rundir: RunDir
    stage: str

    def begin(self) -> None:
        """Make an entry for the stage, if nothing of it was fixed: the entries are in the order of the stages."""
        known = self.of_all_stages()
        if self.stage not in known and self.world.is_main:
            write_json(self.rundir.first_launch, {**known, self.stage: {}})

    def fix(self, what: str, make: Callable[[], Json]) -> Json:
        """What the first launch fixed, or what is fixed now."""
        known = self.of_all_stages()
        mine = known.get(self.stage, {})
        return mine[what] if what in mine else self._write(known, what, make())

    def change(self, what: str, value: Json) -> Json:
        """Fix another value."""
        return self._write(self.of_all_stages(), what, value)

    def _write(self, known: dict[str, Json], what: str, value: Json) -> Json:
        known.setdefault(self.stage, {})[what] = value
        if self.world.is_main:
            write_json(self.rundir.first_launch, known)
        return value

    def of_this_stage(self) -> dict[str, Json]:
        """What was fixed so far."""
        return self.of_all_stages().get(self.stage, {})

    def of_all_stages(self) -> dict[str, Json]:
        """By stage, what was fixed for it."""
        found: dict[str, Json] = self.world.share(read_fixed(self.rundir) if self.world.is_main else None)
        return found


@dataclass(frozen=True)
class StageInfo:
    """The stage of a run that something is built for."""

    config: Any
    world: World
    rundir: RunDir
    name: str
    start: str | None = None
    """The earlier stage whose weights its learners begin with."""
    resumed: bool = False
    """Whether it has a checkpoint, with which all weights come."""
    is_shared: bool = True
    """Whether all ranks see the run directory."""

    @property
    def first_launch(self) -> FirstLaunch:
        return FirstLaunch(self.world, self.rundir, self.name)
