"""What a recipe has in checkpoints has names of its own there."""

from typing import Any

import pytest

from samestep import Every
from samestep.core.errors import UserError
from samestep.train.session.stage_run import state_of_recipe


class Task:
    length = 1
    state: dict[str, Any] = {"model": object()}  # noqa: RUF012

    def step(self, tick: Any) -> Any: ...


class Counting:
    def __init__(self, name: Any) -> None:
        self.name = name

    def after_step(self, tick: Any, metrics: Any, last: bool) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_hooks_with_a_state_are_saved_under_their_name() -> None:
    hook = Counting("count")
    assert list(state_of_recipe("fit", Task(), [hook, Every(2, print)], ["progress"])) == ["model", "count"]


@pytest.mark.parametrize("name", ["model", "progress", "twice"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"the hook Counting is named '{name}', which is taken"):
        state_of_recipe("fit", Task(), [Counting("twice"), Counting(name)], ["progress"])


def test_a_task_cannot_replace_the_state_of_the_runtime() -> None:
    with pytest.raises(UserError, match="the task has a state named 'model', which is taken"):
        state_of_recipe("fit", Task(), [], ["model"])


def test_a_state_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="needs load_state_dict and a `name` to be saved"):
        state_of_recipe("fit", Task(), [Counting(None)], [])


def test_every_needs_a_positive_number() -> None:
    with pytest.raises(UserError, match="at least 1, not 0"):
        Every(0, print)
