"""After a resume every bit counts."""

from collections.abc import Callable

import pytest

from samestep.verify.bitwise import first_change
from samestep.verify.trace import Line
from verify.synthetic import draw, launch

CHANGES: dict[str, tuple[str, Callable[[Line], None], str]] = {
    "samples": ("update", lambda line: line["ids"].reverse(), "the samples differ"),
    "data": ("update", lambda line: line["data"].reverse(), "the data of the samples differs"),
    "parameters before": (
        "update",
        lambda line: line.update(before="fresh") or line["rows"]["error"].reverse(),
        "the parameters or buffers before the update differ",
    ),
    "losses": ("update", lambda line: line["rows"]["error"].reverse(), "the losses differ (error)"),
    "gradients": (
        "update",
        lambda line: line["gradients"].update(bias=[3.0, -1.0 + 2**-52]),
        "the gradients differ (bias)",
    ),
    "parameters": ("update", lambda line: line.update(hash="x"), "the parameters differ"),
    "state": ("step", lambda line: line["state"]["model"].update(hash="x"), "the state differs (model)"),
    "own state": ("step", lambda line: line.update(own={"random": 1}), "the rank's own state differs (random)"),
    "metrics": ("step", lambda line: line.update(metrics={"val/error": 0.1}), "the validation metrics differ"),
    "validation": ("validation", lambda line: line["ids"].pop(), "the samples differ"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_change_is_named(name: str) -> None:
    kind, change, text = CHANGES[name]

    def spoil(rank: int, line: Line) -> None:
        if rank == 1 and line["kind"] == kind and line["step"] >= 2:
            change(line)

    found = first_change(launch(2), launch(2, spoil, start=1))
    step = 3 if kind == "validation" else 2
    assert found.startswith(f"from step {step} on {text}")
    assert found.endswith("(rank 1)")


def test_a_resumed_launch_that_is_the_same_has_no_change() -> None:
    assert first_change(launch(3), launch(3, start=2)) == ""


def test_not_a_number_equals_itself() -> None:
    def spoil(rank: int, line: Line) -> None:
        if line["kind"] == "update":
            line["norm"] = float("nan")

    assert first_change(launch(2, spoil), launch(2, spoil)) == ""


def test_a_killed_launch_may_end_inside_a_step() -> None:
    killed = launch(2)
    step = killed.ranks[0]["fit", 3]
    step.closing_line = None
    step.validations.clear()
    assert first_change(launch(2), killed) == ""


def test_an_update_too_many_or_too_few_is_a_change() -> None:
    more, fewer = launch(2), launch(2)
    more.ranks[0]["fit", 1].updates.append({**more.ranks[0]["fit", 1].updates[0], "hash": "x"})
    fewer.ranks[1]["fit", 1].updates.clear()
    assert "there are 2 updates and not 1" in first_change(launch(2), more)
    assert "there are 0 updates and not 1" in first_change(launch(2), fewer)


def test_a_step_beyond_the_end_is_a_change() -> None:
    assert "step 4 does not happen" in first_change(launch(1), launch(1, start=4, steps=5))


def test_a_draw_that_a_discarded_pass_repeats_is_no_change() -> None:
    ours, theirs = launch(1), launch(1, start=2)
    ours.ranks[0]["fit", 2].draws.append(draw(2, 5, 0.1))
    theirs.ranks[0]["fit", 2].draws += [draw(2, 5, 0.1), draw(2, 5, 0.1)]
    assert first_change(ours, theirs) == ""


def test_parameters_that_a_task_changes_between_updates_are_no_change() -> None:
    def clipped(rank: int, line: Line) -> None:
        if line["kind"] == "update":
            line["before"] = f"clipped {line['step']}"

    assert first_change(launch(2, clipped), launch(2, clipped, start=2)) == ""
