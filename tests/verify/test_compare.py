"""Each way in which two runs can differ is found at the step where it starts, and named."""

import re
from collections.abc import Callable

import pytest

from samestep.verify.compare import Comparison, compare
from samestep.verify.tolerance import Floor
from samestep.verify.trace import Line, RecordedLaunch
from samestep.verify.updates import RunNames
from verify.synthetic import Spoil, draw, launch

NAMES = RunNames("1 rank", "2 ranks", "mean of means")


def compared(theirs: RecordedLaunch, ours: RecordedLaunch | None = None) -> Comparison:
    return compare((ours or launch()).trace(), theirs.trace(), NAMES)


def at(step: int, kind: str, change: Callable[[Line], None], rank: int | None = None) -> Spoil:
    """Changes one line of one step, on one rank or on all."""

    def spoil(here: int, line: Line) -> None:
        if line["kind"] == kind and line["step"] == step and rank in (None, here):
            change(line)

    return spoil


def put(name: str, value: object) -> Callable[[Line], None]:
    return lambda line: line.__setitem__(name, value)


def shift_losses(line: Line) -> None:
    line["rows"]["error"] = [value + 0.01 * place for place, value in enumerate(line["rows"]["error"], 1)]


def divide_by_size(line: Line) -> None:
    sizes = [size for size in line["sizes"] for _ in range(size)]
    line["rows"]["error"] = [value / size for value, size in zip(line["rows"]["error"], sizes)]


def divide_by_something(line: Line) -> None:
    sizes = [size for size in line["sizes"] for _ in range(size)]
    line["rows"]["error"] = [value / (1 + 0.3 * size) for value, size in zip(line["rows"]["error"], sizes)]


def grow_gradient(line: Line) -> None:
    line["gradients"] = {name: [1.1 * value for value in found] for name, found in line["gradients"].items()}
    line["norm"] *= 1.1


@pytest.mark.parametrize("world", [1, 2, 3, 9])
def test_the_same_run_is_the_same_at_any_world_size(world: int) -> None:
    found = compared(launch(world))
    assert found.difference is None
    assert (found.steps, found.stats.updates, found.stats.rows, found.validations) == (4, 4, 28, 5)


def test_rounding_is_no_difference() -> None:
    def rounded(rank: int, line: Line) -> None:
        if line["kind"] == "update":
            line["rows"]["error"] = [value * (1 + 1e-14) for value in line["rows"]["error"]]
            line["gradients"]["bias"] = [3.0 + 1e-13, -1.0]

    found = compared(launch(2, rounded))
    assert found.difference is None
    assert 1e-15 < found.stats.largest["losses"] < 1e-13


CASES = {
    "another sample": (at(2, "update", put("ids", [[0, 99]] * 4), 1), "samples", "step 2 .*unseeded split"),
    "other data": (
        lambda rank, line: (
            line.update(data=[[number + 1, 2] for number, _ in line["data"]]) or shift_losses(line)
            if line["kind"] == "update"
            else None
        ),
        "losses",
        r"row \(0, 0\) of step 0 holds other data.*unseeded split",
    ),
    "other initial parameters": (
        lambda rank, line: (line.update(before="another") or shift_losses(line)) if line["kind"] == "update" else None,
        "losses",
        "step 0 .*initial parameters or buffers differ; candidates: unseeded initialisation",
    ),
    "noise of the rank": (
        at(1, "update", shift_losses, 1),
        "losses",
        r"row \(0, 10\) of step 1 has error 2 at 1 rank and 2.01 at 2 ranks.*rank-dependent noise",
    ),
    "divided by something else of the micro-batch": (
        at(0, "update", divide_by_something),
        "losses",
        "every row of its micro-batch differs by the same factor; candidates: .*mean of means",
    ),
    "drawn numbers": (
        at(0, "update", lambda line: shift_losses(line) or line.update(drew=["torch"]), 1),
        "losses",
        "random numbers were drawn from torch's own generator during the update",
    ),
    "BatchNorm": (
        at(0, "update", lambda line: shift_losses(line) or line.update(batch_norms=["encoder.norm"])),
        "losses",
        "from the same data and parameters: BatchNorm module 'encoder.norm' normalises",
    ),
    "a loss that is off a little": (
        at(0, "update", lambda line: line["rows"].update(error=[v * (1 + 1e-7) for v in line["rows"]["error"]])),
        "losses",
        "a difference of 1.0e-07; candidates: arithmetic in float32 or less",
    ),
    "a gradient that is off a little": (
        at(0, "update", lambda line: line["gradients"].update(bias=[3.0 + 1e-6, -1.0])),
        "gradients",
        "differs by 3.3e-07 .*though every row's loss and all weights agree; candidates: arithmetic in float32",
    ),
    "parameters that a rank changes by itself": (
        lambda rank, line: (
            line.update(hash="own", before="own") if line["kind"] == "update" and line["step"] and rank == 1 else None
        ),
        "ranks",
        "after step 1 at 2 ranks rank 1 .* had before it began",
    ),
    "a missing term": (at(0, "update", put("rows", {}), 0), "losses", "none at 2 ranks: return every term"),
    "ranks that are apart": (
        lambda rank, line: (
            line.update(hash="own", gradients={"weight": [9.0, 1.0], "bias": [3.0, -1.0]})
            if line["kind"] == "update" and line["step"] == 1 and rank == 1
            else None
        ),
        "ranks",
        r"after step 1 at 2 ranks rank 1 .*not synchronised.*\.module",
    ),
    "a buffer of each rank": (at(1, "update", put("hash", "own"), 1), "ranks", "gradients are equal.*buffer"),
    "a weight of each rank": (
        at(0, "update", put("weights", {"rows": 6.0}), 0),
        "gradients",
        "step 0 divides rows by 7 at 1 rank and by 6 on rank 0 at 2 ranks.*agrees: each rank .*mean of means",
    ),
    "another weight on all ranks": (
        at(0, "update", put("weights", {"rows": 6.0})),
        "gradients",
        "agrees: the weight depends on how the batch is cut; a weight is counted",
    ),
    "a larger gradient": (at(3, "update", grow_gradient), "gradients", r"step 3 .*factor of 1\.1.*mean of means"),
    "a gradient that is missing": (
        at(0, "update", lambda line: line["gradients"].update(bias=None)),
        "gradients",
        "gradient of bias differs",
    ),
    "another state on one rank": (
        at(2, "step", lambda line: line["state"]["model"].update(hash="own"), 1),
        "ranks",
        "after step 2 at 2 ranks the state 'model' of rank 1 is not that of rank 0",
    ),
    "a state of another value": (
        at(2, "step", lambda line: line["state"]["model"]["prints"].update({"model/weight": [10.1, 2.0]})),
        "gradients",
        "after step 2 the state model/model/weight differs by 9.9e-03",
    ),
    "a validation row twice": (
        at(3, "validation", lambda line: line["ids"].append([2**31 - 1, 0]), 1),
        "validation",
        r"\(2147483647, 0\) is there too often; candidates: padded validation",
    ),
    "a validation row too few": (
        at(3, "validation", lambda line: line["ids"].pop(), 1),
        "validation",
        r"\(2147483647, 4\) is missing; candidates: padded validation",
    ),
    "another validation metric": (
        at(3, "step", put("metrics", {"val/error": 0.51})),
        "validation",
        "val/error is 0.5 at 1 rank and 0.51 at 2 ranks.*recorded rows are the same; candidates: a mean of rank means",
    ),
    "a validation metric of each rank": (
        at(3, "step", put("metrics", {"val/error": 0.6}), 1),
        "validation",
        "val/error of rank 1 is not that of rank 0",
    ),
    "no update on one rank": (at(1, "update", dict.clear, 1), "samples", "updates nothing on rank 1.*early return"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_named(case: str) -> None:
    spoil, check, sentence = CASES[case]
    difference = compared(launch(2, spoil)).difference
    assert difference is not None
    assert difference.check == check
    assert re.search(sentence, difference.sentence), difference.sentence


def test_a_division_by_the_size_of_the_micro_batch_is_found_from_the_numbers() -> None:
    difference = compared(*(launch(world, at(0, "update", divide_by_size)) for world in (2, 1))).difference
    assert difference is not None
    assert "loss times the number of rows in its micro-batch is the same" in difference.sentence
    assert "count alike (mean of means); return each row's sum" in difference.sentence


@pytest.mark.parametrize("case", ["a loss that is off a little", "a gradient that is off a little"])
def test_what_may_be_rounding_is_not_reported_as_a_mistake_of_weights(case: str) -> None:
    difference = compared(launch(2, CASES[case][0])).difference
    assert difference is not None
    assert "mean of means" not in difference.sentence


def test_what_rounding_does_by_itself_is_no_difference() -> None:
    spoil = CASES["a loss that is off a little"][0]
    assert compare(launch().trace(), launch(2, spoil).trace(), NAMES, Floor({"losses": 3e-8})).difference is None
    assert compare(launch().trace(), launch(2, spoil).trace(), NAMES, Floor({"losses": 3e-12})).difference


def test_an_early_difference_hides_what_follows_from_it() -> None:
    def spoil(rank: int, line: Line) -> None:
        if line["kind"] == "update" and line["step"] >= 1:
            grow_gradient(line)
            if line["step"] >= 2:
                shift_losses(line)

    difference = compared(launch(2, spoil)).difference
    assert difference is not None
    assert difference.check == "gradients"
    assert "step 1" in difference.sentence


def test_a_gradient_near_zero_is_compared_with_the_total_norm() -> None:
    ours = launch(spoil=at(0, "update", lambda line: line["gradients"].update(bias=[2e-17, 1e-17])))
    theirs = launch(2, spoil=at(0, "update", lambda line: line["gradients"].update(bias=[-1e-17, 3e-17])))
    assert compared(theirs, ours).difference is None


@pytest.mark.parametrize(("short", "only"), [((3, 4), "2 ranks"), ((4, 3), "1 rank")])
def test_a_run_of_another_length_is_named(short: tuple[int, int], only: str) -> None:
    ours, theirs = (launch(1, steps=short[0]), launch(2, steps=short[1]))
    for found in (ours, theirs):  # validation comes with the last step, which differs here
        for steps in found.ranks:
            for step in steps.values():
                step.validations.clear()
                step.closing_line = {**(step.closing_line or {}), "metrics": {}}
    difference = compared(theirs, ours).difference
    assert difference is not None
    assert f"step 3 happens only at {only}" in difference.sentence


def with_draws(found: RecordedLaunch, *draws: Line) -> RecordedLaunch:
    for line in draws:
        found.ranks[0][("fit", line["step"])].draws.append(line)
    return found


def test_a_token_may_differ_at_a_tie_and_what_follows_is_not_compared() -> None:
    ours = with_draws(launch(), draw(0, 5, 0.3), draw(1, 5, 4e-7), draw(1, 2, 0.5, position=1))
    theirs = with_draws(
        launch(2, at(2, "update", grow_gradient)), draw(0, 5, 0.3), draw(1, 6, 4e-7), draw(1, 8, 0.5, position=1)
    )
    found = compared(theirs, ours)
    assert found.difference is None
    assert "step 1, sample (0, 3), position 0: 'move' samples token 5 at 1 rank and 6 at 2 ranks" in found.tie
    assert (found.tokens, found.steps) == (1, 2)


def test_a_token_may_not_differ_without_a_tie() -> None:
    ours, theirs = with_draws(launch(), draw(1, 5, 2e-6)), with_draws(launch(2), draw(1, 6, 2e-6))
    difference = compared(theirs, ours).difference
    assert difference is not None
    assert difference.check == "tokens"
    assert "two best are 2.0e-06 apart" in difference.sentence


def test_a_tie_is_wider_where_rounding_is() -> None:
    ours, theirs = with_draws(launch(), draw(1, 5, 2e-6)), with_draws(launch(2), draw(1, 6, 2e-6))
    found = compare(ours.trace(), theirs.trace(), NAMES, Floor({"losses": 1e-7}))
    assert found.difference is None
    assert "a tie closer than 0.00012" in found.tie


def test_a_tie_of_one_sample_does_not_excuse_another() -> None:
    ours = with_draws(launch(), draw(1, 5, 1e-9), draw(1, 5, 0.5, index=4))
    theirs = with_draws(launch(2), draw(1, 6, 1e-9), draw(1, 6, 0.5, index=4))
    difference = compared(theirs, ours).difference
    assert difference is not None
    assert "sample (0, 4)" in difference.sentence
