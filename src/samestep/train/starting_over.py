"""What becomes of a stage that has trained and has no checkpoint left: it is refused, unless told to start over."""

import json
from dataclasses import dataclass

from samestep.checkpoint.manifest import Checkpoint
from samestep.checkpoint.store import NoneWhole, Store
from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.core.rundir import RunDir


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
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found
