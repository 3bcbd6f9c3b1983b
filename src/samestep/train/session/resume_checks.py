"""The checkpoint that a stage resumes from; refuses a stage whose checkpoints are gone or damaged."""

from dataclasses import dataclass

from samestep.checkpoint.manifest import Checkpoint
from samestep.checkpoint.store import NoIntactCheckpoint, Store
from samestep.core.errors import UserError
from samestep.core.records import Json, parse_json_lines
from samestep.core.rundir import RunDir


def checkpoint_to_resume(store: Store, stage: str, rundir: RunDir, start_over: bool) -> tuple[Checkpoint | None, bool]:
    """The checkpoint to resume from, if there is one, and whether the stage starts over because `start_over` is set.

    Collective: rank 0, whose disk has the events, decides for all.
    """
    damaged = ""
    try:
        found = store.newest()
    except NoIntactCheckpoint as error:
        found, damaged = None, error.damage
    if found is not None:
        return found, False
    history = SaveHistory.read(rundir, stage) if store.world.is_main else SaveHistory()
    refusal = store.world.share(history.refusal(stage, rundir, damaged))
    if refusal and not start_over:
        raise UserError(refusal)
    return None, bool(refusal)


@dataclass(frozen=True)
class SaveHistory:
    """What events.jsonl has about the saves of a stage."""

    last: int | None = None
    """The step of the last save; None if there was no save, or no save since the stage was started over."""
    has_started_over: bool = False
    """Whether the stage was started over, and nothing was saved since."""

    @classmethod
    def read(cls, rundir: RunDir, stage: str) -> "SaveHistory":
        """On rank 0, whose disk has the events."""
        found = cls()
        for event in _events(rundir):
            if event.get("stage") == stage and event.get("kind") == "save":
                found = cls(last=event.get("step"))
            elif event.get("stage") == stage and event.get("kind") == "start_over":
                found = cls(has_started_over=True)
        return found

    def refusal(self, stage: str, rundir: RunDir, damaged: str) -> str:
        """Why the stage may not begin at step 0; empty if it may. `damaged` describes the damage of its checkpoints."""
        if self.has_started_over or (self.last is None and not damaged):
            return ""
        saved = "" if self.last is None else f", whose last save was at step {self.last},"
        left = f"has no intact checkpoint left ({damaged})" if damaged else "has no checkpoint left"
        return (
            f"stage {stage!r}{saved} {left}; restore {rundir.checkpoints(stage)}, or start the stage over from its "
            "beginning with start_over=true (the rows of it in metrics.jsonl are then cut)"
        )


def _events(rundir: RunDir) -> list[dict[str, Json]]:
    """All that can be read: a line that a kill or a full disk left incomplete must not end a run."""
    try:
        lines = rundir.events.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return list(parse_json_lines(lines))
