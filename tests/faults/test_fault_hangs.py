"""A rank that gets stuck is named with its line, and the whole run ends; all ways of it, at the same time."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import stuck
from samestep.core.errors import EXIT_STALLED
from samestep.core.records import Json, read_json
from samestep.core.rundir import RunDir
from samestep.launch.local import Workers, start
from samestep.train.session.entry import train_with

LIMIT = 6.0
LIMITS = {**dict.fromkeys(("step", "data", "save", "validate", "finish"), LIMIT), "start": 60.0}
FAULTS = ["data", "forward", "held", "save", "before", "skip", "spin", "stopped"]
BOUND = 150
"""Seconds after which nobody waits any longer; on an idle machine all are over after twenty."""

pytestmark = pytest.mark.timeout(200)


@dataclass
class Hung:
    """What is left of a run that hung."""

    rundir: RunDir
    codes: list[int | None]
    printed: list[str]

    @property
    def stall(self) -> Json:
        return read_json(self.rundir.stall_report)


def begin(folder: Path, fault: str, world: int = 2) -> Workers:
    limits = {**LIMITS, "start": LIMIT} if fault == "build" else LIMITS
    changes = {"watch": limits, "fault": fault, "name": "run", "global_batch_size": world}
    config = stuck.settings(folder / fault, LIMIT, **changes)
    return start(train_with, world, stuck.NAME, config, logs=folder / fault, preload=("torch", stuck.NAME))


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Hung]]:
    folder = tmp_path_factory.mktemp("hung")
    runs = {fault: begin(folder, fault) for fault in FAULTS}
    try:
        yield {
            fault: Hung(RunDir(folder / fault / "run"), workers.wait(BOUND), [workers.output(0), workers.output(1)])
            for fault, workers in runs.items()
        }
    finally:
        for workers in runs.values():
            workers.kill()


def line(mark: str) -> str:
    """`stuck.py:LINE`, of the line that bears this mark."""
    lines = Path(stuck.__file__).read_text().splitlines()
    return f"stuck.py:{next(n for n, text in enumerate(lines, 1) if text.endswith(f'# stuck: {mark}'))} in "


@pytest.mark.parametrize("fault", FAULTS)
def test_the_culprit_is_named_and_the_run_ends(hung: dict[str, Hung], fault: str) -> None:
    run = hung[fault]
    assert run.codes[0] == EXIT_STALLED, run.printed
    assert run.codes[1] in ((None, -signal.SIGKILL) if fault in ("held", "stopped") else (EXIT_STALLED,)), run.printed
    assert run.stall_report is not None and run.stall_report["rank"] == 1, run.printed
    told = [line_ for line_ in run.printed[0].splitlines() if line_.startswith("samestep: ")]
    assert told == [f"samestep: {run.stall_report['sentence']}"], "one sentence, from the lowest rank alive"
    assert "samestep: " not in run.printed[1]


@pytest.mark.parametrize("fault", ["data", "forward", "held", "save", "before", "spin"])
def test_with_its_source_line(hung: dict[str, Hung], fault: str) -> None:
    assert line(fault) in hung[fault].stall["sentence"]
    assert line(fault) in hung[fault].stall["where"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("data", "has been loading data for"),
        ("forward", "has been computing for"),
        ("held", "holds the interpreter"),
        ("save", "has been saving for"),
        ("skip", "left out a collective that it began before, all_reduce"),
        ("stopped", "was stopped by a signal (SIGSTOP)"),
    ],
)
def test_and_with_what_it_did(hung: dict[str, Hung], fault: str, words: str) -> None:
    assert words in hung[fault].stall["sentence"]
    assert "rank 0 waits" in hung[fault].stall["sentence"]


@pytest.mark.parametrize("fault", ["forward", "held", "save"])
def test_stacks_words_and_signs_of_life_are_left(hung: dict[str, Hung], fault: str) -> None:
    rundir = hung[fault].rundir
    for rank in (0, 1):
        assert "most recent call first" in rundir.stack_dump(rank).read_text()
        assert read_json(rundir.heartbeat(rank))["rank"] == rank
    word = read_json(rundir.exit_report(0))
    assert (word["kind"], word["code"], word["echo"]) == ("hung", EXIT_STALLED, False)


def test_the_last_collectives_are_left(hung: dict[str, Hung]) -> None:
    assert any(
        "all_reduce" in row["profiling_name"] for row in read_json(hung["skip"].rundir.collectives(1))["entries"]
    )


def test_a_lone_process_that_hangs(tmp_path: Path) -> None:
    config = stuck.settings(tmp_path, LIMIT, watch=LIMITS, fault="spin", at_rank=0, name="run", global_batch_size=1)
    workers = start(train_with, 1, stuck.NAME, config, logs=tmp_path / "logs")
    assert workers.wait(BOUND) == [EXIT_STALLED], workers.output(0)
    assert (
        f"samestep: rank 0 on {read_json(RunDir(tmp_path / 'run').stall_report)['host']} has been computing"
        in workers.output(0)
    )
    assert line("spin") in workers.output(0)


def test_a_rank_that_hangs_while_it_builds(tmp_path: Path) -> None:
    workers = begin(tmp_path, "build")
    assert workers.wait(BOUND) == [EXIT_STALLED] * 2, workers.output(0)
    assert line("build") in workers.output(0) and "rank 1 on" in workers.output(0)
