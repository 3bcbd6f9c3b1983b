"""The small functions that a proof consists of."""

import math
import random
from pathlib import Path

import pytest

from samestep.core.json_files import JsonLines, write_json
from samestep.core.output import plural
from samestep.core.rundir import RunDir
from samestep.verify.bitwise import differing_metric, read_metrics
from samestep.verify.compare import compare
from samestep.verify.report import comparison_checks, every_parameter_reached
from samestep.verify.runner import KillMoment, RunResult
from samestep.verify.tolerance import ProofStatus, distance
from samestep.verify.trace import Line, early_return_sentence, last_error, stall_sentence
from samestep.verify.updates import RunNames
from verify.synthetic import launch

NAMES = RunNames("1 rank", "2 ranks", "mean of means")


def test_distance_is_relative_and_small_numbers_are_rounding() -> None:
    assert distance(100.0, 101.0) == pytest.approx(1 / 101)
    assert distance(1e-17, -1e-17) < 1e-12
    assert distance(1e-3, 1.1e-3) > 0.05
    assert distance(math.nan, math.nan) == 0
    assert distance(1.0, math.nan) == math.inf
    assert distance(math.inf, math.inf) == 0


def test_plurals() -> None:
    assert [plural(1, "step"), plural(2, "step"), plural(3, "hash")] == ["1 step", "2 steps", "3 hashes"]


def idle(rank: int, line: Line) -> None:
    if line["kind"] == "update":
        line["gradients"] = {"head.weight": [1.0, 0.5], "idle.weight": None, "idle.bias": [0.0, 0.0]}


def test_a_parameter_without_a_gradient_is_named() -> None:
    found = every_parameter_reached(launch(1, idle).trace(), [])
    assert found.result is ProofStatus.FAILED
    assert found.sentence.startswith("model.idle.weight, model.idle.bias never got one")


@pytest.mark.parametrize("unused", [["idle.*"], ["model.idle.*"], ["idle.weight", "*.bias"]])
def test_a_parameter_may_be_declared_unused(unused: list[str]) -> None:
    found = every_parameter_reached(launch(1, idle).trace(), unused)
    assert found.result is ProofStatus.OK
    assert found.sentence == "3 parameters, 2 declared unused"


def test_one_gradient_is_enough() -> None:
    def once(rank: int, line: Line) -> None:
        if line["kind"] == "update":
            line["gradients"] = {"lora.a": [float(line["step"] == 2), 0.0]}

    assert every_parameter_reached(launch(1, once).trace(), []).result is ProofStatus.OK


def test_the_rank_that_left_a_step_early_is_named() -> None:
    def leave(rank: int, line: Line) -> None:
        left = rank == 1 and line["kind"] == "returned"
        if line["step"] == 2 and not left:  # rank 1 returns at once, ranks 0 and 2 wait in the update for ever
            line.clear()

    found = early_return_sentence(launch(3, leave, steps=3), launch().trace())
    assert found.startswith("rank 1 left step 2 after 0 updates of 1 while ranks 0, 2 did not get to its end: an early")


def test_no_rank_left_early_where_all_died_in_an_update() -> None:
    def die(rank: int, line: Line) -> None:
        if line["step"] == 2:
            line.clear()

    assert early_return_sentence(launch(2, die, steps=3), launch().trace()) == ""


def test_a_rank_that_made_no_progress_is_named() -> None:
    def hang(rank: int, line: Line) -> None:
        if line["step"] == 2 and (rank == 1 or line["kind"] != "returned"):
            line.clear()

    found = launch(2, hang, steps=3)
    assert stall_sentence(found, [1, None]) == "rank 1 made no progress after step 1, and the others gave up: "
    assert stall_sentence(found, [1, 1]) == ""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("banner\nsamestep: the data is empty\n", "the data is empty"),
        ("Traceback\n  File x\nValueError: no: such\n", "ValueError: no: such"),
        ("torch.AnyError: out of memory\nmore lines\nthat say: little\n", "torch.AnyError: out of memory"),
        ("only words\n", "only words"),
        ("", "it printed nothing"),
    ],
)
def test_the_last_error_is_the_exception(output: str, error: str) -> None:
    assert last_error(output) == error


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path
    assert RunResult(folder, 2, [1, 1], ["a\nValueError: bad\n", ""]).failure() == "ValueError: bad"
    assert RunResult(folder, 2, [0, 2], ["", ""]).failure() == "exit codes [0, 2]"
    write_json(RunDir(folder).exit_report(1), {"text": "a file is missing"})
    assert RunResult(folder, 2, [0, 2], ["", ""]).failure() == "rank 1 ended with: a file is missing"
    assert (
        RunResult(folder, 2, [-6, 0], ["what(): mismatch", ""]).failure() == "what(): mismatch; rank 0 died by SIGABRT"
    )
    assert RunResult(folder, 1, [1], [""]).failure() == "exit codes [1]"


def test_kill_moments_follow_their_seed_and_reach_every_case() -> None:
    moments = [KillMoment.choose(random.Random(seed), 3, 2, 6) for seed in range(200)]
    assert moments[:20] == [KillMoment.choose(random.Random(seed), 3, 2, 6) for seed in range(20)]
    assert {moment.steps for moment in moments} == {2, 3, 4, 5, 6}
    assert {moment.victims for moment in moments} == {(0,), (1,), (2,), (0, 1, 2)}
    assert KillMoment.choose(random.Random(1), 2, 3, 1).steps == 1  # a run shorter than the first save
    assert moments[0].earlier().steps == moments[0].steps - 1


def write_metrics(path: Path, *rows: dict[str, float]) -> Path:
    lines = JsonLines(RunDir(path).metrics)
    for step, row in enumerate(rows, 1):
        lines.append({"stage": "fit", "step": step, "epoch": 0, **row})
    return path


def test_metrics_are_compared_without_their_speed(tmp_path: Path) -> None:
    ours = read_metrics(write_metrics(tmp_path / "a", {"loss": 1.0, "rows/s": 10.0}))
    theirs = read_metrics(write_metrics(tmp_path / "b", {"loss": 1.0, "rows/s": 20.0}))
    assert differing_metric(ours, theirs) == ""


def test_a_differing_metric_is_named(tmp_path: Path) -> None:
    ours = read_metrics(write_metrics(tmp_path / "a", {"loss": 1.0}, {"loss": 2.0}))
    near = read_metrics(write_metrics(tmp_path / "b", {"loss": 1.0}, {"loss": 2.0 + 1e-12}))
    short = read_metrics(write_metrics(tmp_path / "c", {"loss": 1.0}))
    named = read_metrics(write_metrics(tmp_path / "d", {"loss": 1.0}, {"loss": 2.0, "more": 1.0}))
    assert differing_metric(ours, near, 1e-8) == ""
    assert differing_metric(ours, near).startswith("loss at step 2: 2.0 and 2.0000")
    assert differing_metric(ours, short, 1e-8) == "2 and 1 rows"
    assert differing_metric(ours, named, 1e-8) == "more at step 2: None and 1.0"


def test_checks_after_the_first_failure_are_left_out() -> None:
    def spoil(rank: int, line: Line) -> None:
        if line["kind"] == "update" and line["step"] == 2:
            line["weights"] = {"rows": 6.0}

    good, bad = (compare(launch().trace(), launch(2, each).trace(), NAMES) for each in (lambda r, x: None, spoil))
    assert [check.result for check in comparison_checks([good, good])] == [ProofStatus.OK] * 5
    checks = comparison_checks([good, bad])
    assert [check.result for check in checks] == [ProofStatus.OK] * 3 + [ProofStatus.FAILED]
    assert checks[0].sentence == "3 steps, 3 updates, 21 rows"
    assert checks[-1].name == "gradients at 1, 2, 3 ranks"


def test_equal_shares_are_reported_to_prove_little() -> None:
    found = compare(launch(batch=12).trace(), launch(2, batch=12).trace(), NAMES)
    gradients = comparison_checks([found])[3]
    assert gradients.result is ProofStatus.OK
    assert gradients.sentence.endswith("a mean of means would not show: use another global_batch_size")


def test_a_recipe_without_validation_is_reported_to_have_none() -> None:
    def bare(rank: int, line: Line) -> None:
        if line["kind"] == "validation":
            line.clear()
        elif line["kind"] == "step":
            line["metrics"] = {}

    found = compare(launch(1, bare).trace(), launch(2, bare).trace(), NAMES)
    assert comparison_checks([found])[-1].sentence == "the recipe validates nothing"
