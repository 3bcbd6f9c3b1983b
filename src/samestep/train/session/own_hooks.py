"""The hooks that a stage adds, and their part of its checkpoints."""

from collections.abc import Collection, Sequence
from typing import Any

from samestep.core.errors import UserError
from samestep.train.loop import Hook, Task

RUNTIME_STATE = ("progress", "window", "epoch", "random")
"""Names of the runtime's own state in every checkpoint, beside the recipe's."""


def state_of_recipe(stage: str, task: Task, hooks: Sequence[Hook]) -> dict[str, Any]:
    """What a recipe has in a checkpoint, by name: the state of the task, and of hooks that have one."""
    state: dict[str, Any] = dict(task.state)
    for hook in hooks:
        if hasattr(hook, "state_dict"):
            state[_name(stage, hook, [*state, *RUNTIME_STATE])] = hook
    return state


def _name(stage: str, hook: Any, taken: Collection[str]) -> str:
    name = getattr(hook, "name", None)
    kind = type(hook).__name__
    if not isinstance(name, str) or not hasattr(hook, "load_state_dict"):
        raise UserError(
            f"stage {stage!r}: the hook {kind} has a state_dict, so it needs load_state_dict and a `name` to be saved"
        )
    if name in taken:
        raise UserError(f"stage {stage!r}: the hook {kind} is named {name!r}, which is taken; choose another name")
    return name
