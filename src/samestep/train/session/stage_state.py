"""The state of a stage: what is in its checkpoints, the one to resume from, and the best one, taken back at the end."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from samestep.checkpoint.manifest import Checkpoint
from samestep.checkpoint.state import Stateful
from samestep.checkpoint.store import NoIntactCheckpoint, Store
from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json, parse_json_lines
from samestep.core.rundir import RunDir
from samestep.train.api.loop import Hook, Task
from samestep.train.artifacts.array_writer import ArrayArtifact
from samestep.train.learner.learner import Learner
from samestep.train.logging.console import Screen, format_metrics
from samestep.train.session.context import ReadyStage


def state_of_recipe(stage: str, task: Task, hooks: Sequence[Hook], taken: Collection[str]) -> dict[str, Any]:
    """What a recipe has in a checkpoint, by name: the state of the task, and of hooks that have one. `taken` are the
    names of the runtime's own state."""
    state: dict[str, Any] = dict(task.state)
    for name in sorted(state.keys() & set(taken)):
        raise UserError(f"stage {stage!r}: the task has a state named {name!r}, which is taken; choose another name")
    for hook in hooks:
        if hasattr(hook, "state_dict"):
            state[_hook_name(stage, hook, [*state, *taken])] = hook
    return state


def _hook_name(stage: str, hook: Any, taken: Collection[str]) -> str:
    name = getattr(hook, "name", None)
    kind = type(hook).__name__
    if not isinstance(name, str) or not hasattr(hook, "load_state_dict"):
        raise UserError(
            f"stage {stage!r}: the hook {kind} has a state_dict, so it needs load_state_dict and a `name` to be saved"
        )
    if name in taken:
        raise UserError(f"stage {stage!r}: the hook {kind} is named {name!r}, which is taken; choose another name")
    return name


def refuse_unsaved(stage: str, learners: Sequence[Learner], state: Mapping[str, Stateful]) -> None:
    """Refuse learners, and averages and earlier weights of them, that no part of the state saves: a resumed run would
    begin again with fresh ones.

    A part may save others inside its own state. So what counts is whose `state_dict` is called when the state is taken.
    """
    wanted: list[tuple[str, str, Any]] = []
    for learner in learners:
        wanted.append((f"learner {learner.name!r}", learner.name, learner))
        wanted += [(f"{what} of learner {learner.name!r}", "weights", part) for what, part in learner.kept_weights]
    with _saved_parts([part for *_, part in wanted]) as saved:
        for part in state.values():
            part.state_dict()
    for what, key, part in wanted:
        if id(part) not in saved:
            otherwise = "; a network that is not trained is made with bench.frozen" if part in learners else ""
            has = ", ".join(map(repr, state)) or "nothing"
            raise UserError(
                f"stage {stage!r}: {what} is not in the task's state, which has {has}: "
                f'no checkpoint would have it; add it, as in state = {{"{key}": {key}, ...}}{otherwise}'
            )


@contextmanager
def _saved_parts(parts: Sequence[Any]) -> Iterator[set[int]]:
    """The set will hold the `id` of each of these parts whose `state_dict` is called inside."""
    saved: set[int] = set()

    def noting(part: Any, state_dict: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            saved.add(id(part))
            return state_dict()

        return noted

    for part in parts:
        vars(part)["state_dict"] = noting(part, part.state_dict)
    try:
        yield saved
    finally:
        for part in parts:
            del vars(part)["state_dict"]


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


class _Kept:
    """In place of an array artifact, which is complete by now: what it was at the best step does not matter."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignored."""

    def rank_state(self) -> Json:
        """Nothing."""

    def load_rank_state(self, states: Sequence[Json]) -> None:
        """Ignored."""


def take_back_best(ready: ReadyStage, screen: Screen) -> None:
    """Load the best checkpoint into the task, its learners and hooks; the progress stays that of the end. Collective.

    The checkpoint of the last step is left as it is, so a stage that is extended later goes on from there.
    """
    assert ready.stage.best is not None
    metric, _ = ready.stage.best
    best = ready.store.best()
    if best is None or best.metric is None:
        raise RunFailed(
            f"best_at_end=true, but no intact checkpoint of stage {ready.stage.name!r} has the metric {metric!r}; "
            "resume with best_at_end=false to keep the state of the last step"
        )
    if best.step != ready.loop.progress.step:
        at_end = ready.loop.progress.state_dict()
        ready.store.load(
            best, {name: _Kept() if isinstance(part, ArrayArtifact) else part for name, part in ready.state.items()}
        )
        ready.loop.progress.load_state_dict(at_end)
    shown = format_metrics({metric: best.metric})
    screen.print(f"stage {ready.stage.name!r} ends with the state of step {best.step:,}, the best by {shown}")
