"""A rank that hangs is named with its source line, and the whole run ends; all kinds of hangs run at the same time."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import hang_faults, hangs, uneven
from samestep.core.errors import EXIT_STALLED
from samestep.core.json_files import Json, read_json
from samestep.core.rundir import RunDir
from samestep.launching.local import Workers, start
from samestep.train.session.entry import train_with

LIMIT = 6.0
FAULTS = ["data", "forward", "held", "save", "before", "skip", "spin", "stopped"]
UNEVEN = {
    "leaves_out": "made no update of learner 'model' at step 9 of stage 'fit', where rank 0 made 1 (rank 0 at ",
    "adds": "made 2 updates of learner 'model' at step 9 of stage 'fit', where rank 0 made 1 (rank 1 at ",
}
"""What rank 1 does of its own, so that the ranks hang, and what is said of it."""
ALONE = ["validates", "in_hook"]
"""What rank 1 does alone: the ranks hang, or meet in different messages."""
LONE = {"fault": "forward", "at_rank": 0, "global_batch_size": 1}
TIMEOUT = 150
"""Seconds to wait for the end of a run; on an idle machine all end within twenty."""

pytestmark = pytest.mark.timeout(900)


@dataclass
class HungRun:
    """What a run that hung left behind."""

    rundir: RunDir
    codes: list[int | None]
    printed: list[str]

    @property
    def stall(self) -> Json:
        return read_json(self.rundir.stall_report)


def begin(folder: Path, fault: str) -> Workers:
    """Start a run with a fault; `lone` sleeps in a single process."""
    changes = {"fault": fault, "global_batch_size": 2} if fault != "lone" else LONE
    start_limit = LIMIT if fault == "build" else 60.0
    config = hang_faults.settings(folder / fault, LIMIT, start_limit, name="run", **changes)
    recipe = uneven.NAME if fault in uneven.ODD_STEPS else hang_faults.NAME
    world, preload = config["global_batch_size"], ("torch", hang_faults.NAME, uneven.NAME)
    return start(train_with, world, recipe, config, logs=folder / fault, preload=preload)


def finish(folder: Path, fault: str, workers: Workers) -> HungRun:
    """Wait until a run has ended; ranks that cannot end themselves are killed some seconds after the others."""
    codes = workers.wait(TIMEOUT)
    return HungRun(RunDir(folder / fault / "run"), codes, [workers.output(rank) for rank in range(len(codes))])


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, HungRun]]:
    folder = tmp_path_factory.mktemp("hung")
    runs = {fault: begin(folder, fault) for fault in (*FAULTS, *UNEVEN, *ALONE, "build", "lone")}
    try:
        with ThreadPoolExecutor(len(runs)) as pool:
            ended = {fault: pool.submit(finish, folder, fault, workers) for fault, workers in runs.items()}
            yield {fault: run.result() for fault, run in ended.items()}
    finally:
        for workers in runs.values():
            workers.kill()


def source_line(mark: str) -> str:
    """`hang_faults.py:LINE in ` for the line that ends with this mark."""
    return _marked_line(Path(hang_faults.__file__), f"# hang: {mark}")


def _marked_line(file: Path, mark: str) -> str:
    return (
        f"{file.name}:{next(n for n, text in enumerate(file.read_text().splitlines(), 1) if text.endswith(mark))} in "
    )


@pytest.mark.parametrize("fault", [*FAULTS, *UNEVEN])
def test_the_culprit_is_named_and_the_run_ends(hung: dict[str, HungRun], fault: str) -> None:
    run = hung[fault]
    assert run.codes[0] == EXIT_STALLED, run.printed
    assert run.codes[1] in ((None, -signal.SIGKILL) if fault in ("held", "stopped") else (EXIT_STALLED,)), run.printed
    assert run.stall is not None and run.stall["rank"] == 1, run.printed
    messages = [line for line in run.printed[0].splitlines() if line.startswith("samestep: ")]
    assert messages == [f"samestep: {run.stall['sentence']}"], "one sentence, from the lowest rank alive"
    assert "samestep: " not in run.printed[1]


@pytest.mark.parametrize("fault", ["data", "forward", "held", "save", "before", "spin"])
def test_the_source_line_is_named(hung: dict[str, HungRun], fault: str) -> None:
    assert source_line(fault) in hung[fault].stall["sentence"]
    assert source_line(fault) in hung[fault].stall["where"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("data", "has been loading data for"),
        ("forward", "has been computing for"),
        ("held", "holds the interpreter"),
        ("save", "has been saving for"),
        ("skip", "left the way of rank 0: it began all_reduce of"),
        ("stopped", "was stopped by a signal (SIGSTOP)"),
    ],
)
def test_what_it_did_is_named(hung: dict[str, HungRun], fault: str, message: str) -> None:
    assert message in hung[fault].stall["sentence"]
    assert "rank 0 waits" in hung[fault].stall["sentence"]


@pytest.mark.parametrize("fault", UNEVEN)
def test_a_rank_that_makes_other_updates_is_named_with_its_step_and_the_recipes_line(
    hung: dict[str, HungRun], fault: str
) -> None:
    sentence, line = hung[fault].stall["sentence"], _marked_line(Path(uneven.__file__), f"# line: {fault}")
    assert sentence.startswith(f"rank 1 on {hung[fault].stall['host']} {UNEVEN[fault]}"), sentence
    assert line in sentence and "an `if` around them must not depend on the rank or on its rows" in sentence


@pytest.mark.parametrize("fault", ALONE)
def test_what_a_rank_does_alone_is_named_with_the_recipes_line(hung: dict[str, HungRun], fault: str) -> None:
    run, line = hung[fault], _marked_line(Path(uneven.__file__), f"# line: {fault}")
    assert 0 not in run.codes and -signal.SIGABRT not in run.codes, run.printed
    said = run.stall["sentence"] if run.stall else "".join(run.printed)
    assert ("rank 1 on" in said and "left the way of rank 0" in said) or "rank 1, at " in said, said
    assert line in said and "an `if` around them must not depend on the rank or on its rows" in said


@pytest.mark.parametrize("fault", ["forward", "held", "save"])
def test_stack_dumps_exit_reports_and_heartbeats_are_left(hung: dict[str, HungRun], fault: str) -> None:
    rundir = hung[fault].rundir
    for rank in (0, 1):
        assert "most recent call first" in rundir.stack_dump(rank).read_text()
        assert read_json(rundir.heartbeat(rank))["rank"] == rank
    word = read_json(rundir.exit_report(0))
    assert (word["kind"], word["code"], word["echo"]) == ("hung", EXIT_STALLED, False)


def test_the_last_collectives_are_left(hung: dict[str, HungRun]) -> None:
    assert any(
        "all_reduce" in row["profiling_name"] for row in read_json(hung["skip"].rundir.collectives(1))["entries"]
    )


def test_a_lone_process_that_hangs(hung: dict[str, HungRun]) -> None:
    run = hung["lone"]
    assert run.codes == [EXIT_STALLED], run.printed
    assert f"samestep: rank 0 on {run.stall['host']} has been computing" in run.printed[0]
    assert source_line("forward") in run.printed[0] and "raise watch.step" in run.printed[0]


def test_a_rank_that_hangs_while_it_builds(hung: dict[str, HungRun]) -> None:
    run = hung["build"]
    assert run.codes == [EXIT_STALLED] * 2, run.printed
    assert source_line("build") in run.printed[0] and "rank 1 on" in run.printed[0]


@pytest.mark.long
def test_with_the_default_limits_a_hang_is_reported_long_before_they_end(tmp_path: Path) -> None:
    """Also where rank 0 cannot print it; the run itself goes on."""
    with hangs.launchers(["samestep"], tmp_path) as known, ThreadPoolExecutor(2) as pool:
        cases = [("samestep", fault, rank, "cpu", tmp_path, known) for fault, rank in (("stopped", 0), ("skip", 1))]
        for found in pool.map(lambda case: hangs.first_word(*case), cases):
            assert found.named, found
