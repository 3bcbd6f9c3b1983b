"""What a recipe has in checkpoints has names of its own there, and nothing that is trained is missing."""

from typing import Any

import pytest

from samestep import Every
from samestep.core.errors import UserError
from samestep.train.learner.earlier_weights import EarlierWeights
from samestep.train.learner.ema import Average
from samestep.train.session.stage_state import refuse_unsaved, state_of_recipe
from samestep.world.world import World
from toys import Net, learner_of, made


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


class Together:
    """A part of the state that saves others inside its own."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_what_is_trained_must_be_saved() -> None:
    first, second = (learner_of(made(Net), World.single(), "ddp", name=name) for name in ("first", "second"))
    average, earlier = Average(first, 0.9), EarlierWeights(second, 1)
    every: dict[str, Any] = {"first": first, "second": second, "average": average, "earlier": earlier}
    refuse_unsaved("fit", [first, second], every)
    refuse_unsaved("fit", [first, second], {"all": Together(some=Together(**every))})
    messages = {
        "first": "learner 'first' is not in the task's state, which has 'second', 'average', 'earlier': no checkpoint",
        "second": 'learner .second. .* add it, as in state = {"second": second, ...}; a network that is not trained is',
        "average": "the average of learner 'first' is not in the task's state",
        "earlier": "a copy of the earlier weights of learner 'second' is not in the task's state",
    }
    for missing, message in messages.items():
        kept = {name: part for name, part in every.items() if name != missing}
        for state in (kept, {"all": Together(**kept)}):
            with pytest.raises(UserError, match=message.split(" which has")[0] if "all" in state else message):
                refuse_unsaved("fit", [first, second], state)
    assert "state_dict" not in vars(first), "nothing stays on the parts"
