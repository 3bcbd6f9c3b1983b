"""What a resumed run is refused for: other data than it was started on, or checkpoints that are gone."""

import logging
from dataclasses import dataclass
from typing import Literal

from samestep.checkpoint.manifest import Checkpoint, checkpoint_folders
from samestep.checkpoint.store import NoneWhole, Store
from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json, parse_json_lines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.data.fingerprint import Reading, compare, take
from samestep.data.loading import Rows
from samestep.world.world import World

logger = logging.getLogger(__name__)
KEY = "data"
"""Where frozen.json has the fingerprints of a stage: by purpose, in the order in which the stage makes its feeds."""


@dataclass(frozen=True)
class FeedName:
    """Which of a stage's feeds is meant."""

    stage: str
    purpose: Literal["training", "validation"]
    number: int
    """Among the feeds of this purpose, from 0."""

    def __str__(self) -> str:
        which = f" number {self.number + 1}" if self.number else ""
        return f"the {self.purpose} data{which} of stage {self.stage!r}"


def check_data(rows: Rows, name: FeedName, rundir: RunDir, world: World, reading: Reading) -> None:
    """Record the data's fingerprint, or compare it with the one on record. Collective; refuses on all ranks alike."""
    refusal, failure = "", None
    if world.is_main:
        try:
            with world.watch.doing("data"):
                refusal = _look(rows, name, rundir, reading)
        except Exception as error:  # what rows raise here they would raise in training
            failure = error
            world.report_failure(error)
    refusal, failed = world.share([refusal, failure is not None])
    if failure is not None:
        raise failure
    if failed:
        world.raise_peer_failure()
        raise RunFailed(f"rank 0 could not read {name}; its log says why")
    if refusal:
        raise UserError(refusal)


def _look(rows: Rows, name: FeedName, rundir: RunDir, reading: Reading) -> str:
    """Rank 0's part: why the run cannot go on with this data, or nothing."""
    frozen = read_json(rundir.frozen) or {}
    records: list[Json] = frozen.setdefault(name.stage, {}).setdefault(KEY, {}).setdefault(name.purpose, [])
    if name.number >= len(records):
        records.append(take(rows, reading))
        if checkpoint_folders(rundir.checkpoints(name.stage)):
            logger.info("%s had no fingerprint in this run; it is recorded from now on", name)
        write_json(rundir.frozen, frozen)
        return ""
    before = records[name.number]
    found = compare(before, rows, reading)
    if found.difference:
        return (
            f"{name} has changed since this run was started ({found.difference}); restore the data, or start a new "
            f"run (init_from={rundir.path} keeps the weights)"
        )
    if found.is_random:
        logger.warning("rows of %s differ each time they are read, so a change of the data cannot be noticed", name)
    if found.is_new:
        logger.info("%s has a fingerprint of another kind now; it is recorded from now on", name)
    if found.record != before:
        records[name.number] = found.record
        write_json(rundir.frozen, frozen)
    return ""


def newest_checkpoint(store: Store, stage: str, rundir: RunDir, start_over: bool) -> tuple[Checkpoint | None, bool]:
    """The checkpoint to go on from, if there is one, and whether the stage begins again because it was told to.

    Collective: rank 0, whose disk has the events, decides for all.
    """
    damaged = ""
    try:
        found = store.newest()
    except NoneWhole as error:
        found, damaged = None, error.damage
    if found is not None:
        return found, False
    saves = Saves.read(rundir, stage) if store.world.is_main else Saves()
    refusal = store.world.share(saves.refusal(stage, rundir, damaged))
    if refusal and not start_over:
        raise UserError(refusal)
    return None, bool(refusal)


@dataclass(frozen=True)
class Saves:
    """What events.jsonl knows of the saves of a stage."""

    last: int | None = None
    """The step of the last one; None: there was none, or none since the stage was started over."""
    has_started_over: bool = False
    """Whether the stage was started over, and nothing was saved since."""

    @classmethod
    def read(cls, rundir: RunDir, stage: str) -> "Saves":
        """On rank 0, whose disk has the events."""
        found = cls()
        for event in _events(rundir):
            if event.get("stage") == stage and event.get("kind") == "save":
                found = cls(last=event.get("step"))
            elif event.get("stage") == stage and event.get("kind") == "start_over":
                found = cls(has_started_over=True)
        return found

    def refusal(self, stage: str, rundir: RunDir, damaged: str) -> str:
        """Why the stage may not begin at step 0, or nothing; `damaged` says what is wrong with its checkpoints."""
        if self.has_started_over or (self.last is None and not damaged):
            return ""
        saved = "" if self.last is None else f", whose last save was at step {self.last},"
        left = f"has no whole checkpoint left ({damaged})" if damaged else "has no checkpoint left"
        return (
            f"stage {stage!r}{saved} {left}; restore {rundir.checkpoints(stage)}, or start the stage over from its "
            "beginning with start_over=true (the rows of it in metrics.jsonl are then cut)"
        )


def _events(rundir: RunDir) -> list[dict[str, Json]]:
    """All that can be read: a line that a kill or a full disk left in pieces must not end a run."""
    try:
        lines = rundir.events.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return list(parse_json_lines(lines))
