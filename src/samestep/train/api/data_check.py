"""Refuses a resume on other data than the run was started on, by a fingerprint of the data of every feed, and data that
is random."""

import logging
from dataclasses import dataclass
from typing import Literal

from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json, write_json
from samestep.core.rundir import RunDir
from samestep.data.chosen_rows import RandomRows, ReadOptions
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.loading import Rows
from samestep.train.record.fixed_values import DATA, read_fixed
from samestep.world.world import World

logger = logging.getLogger(__name__)


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


def check_data(rows: Rows, name: FeedName, rundir: RunDir, world: World, reading: ReadOptions) -> None:
    """Record the data's fingerprint, or compare it with the recorded one. Collective: all ranks refuse or none does."""
    refusal, failure = "", None
    if world.is_main:
        try:
            with world.activity.doing("data"):
                refusal = _compare_or_record(rows, name, rundir, reading)
        except RandomRows as random:
            refusal = f"{name} {random}"
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


def _compare_or_record(rows: Rows, name: FeedName, rundir: RunDir, reading: ReadOptions) -> str:
    """Rank 0's part: why the run cannot go on with this data; empty if it can."""
    known = read_fixed(rundir)
    records: list[Json] = known.setdefault(name.stage, {}).setdefault(DATA, {}).setdefault(name.purpose, [])
    if name.number >= len(records):
        records.append(take_fingerprint(rows, reading))
        if checkpoint_folders(rundir.checkpoints(name.stage)):
            logger.info("%s had no fingerprint in this run; it is recorded from now on", name)
        write_json(rundir.first_launch, known)
        return ""
    before = records[name.number]
    found = compare_fingerprint(before, rows, reading)
    if found.difference:
        return (
            f"{name} has changed since this run was started ({found.difference}); restore the data, or start a new "
            f"run (init_from={rundir.path} keeps the weights)"
        )
    if found.is_new:
        logger.info("%s has a fingerprint of another kind now; it is recorded from now on", name)
    if found.record != before:
        records[name.number] = found.record
        write_json(rundir.first_launch, known)
    return ""
