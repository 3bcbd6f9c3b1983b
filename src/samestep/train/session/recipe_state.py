"""What a recipe has in a checkpoint, and a refusal of what is trained but would not be in it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from samestep.checkpoint.state import Stateful
from samestep.core.errors import UserError
from samestep.train.api.loop import Hook, Task
from samestep.train.learner.learner import Learner


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
