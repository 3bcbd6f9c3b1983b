"""Real runs that are ended in every way, and the diagnosis afterwards."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import faulty
from faults import toy
from faults.fault_injection import SaveFault, train_with_fault
from faults.fault_runs import LAUNCH_TIMEOUT, STEP_DELAY, FaultRuns, small_disk
from samestep.cli.main import main
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.launching import local
from samestep.train.session.entry import train_with
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from samestep.why.records import Diagnosis

pytestmark = pytest.mark.timeout(900)
ENDLESS = 1_000_000
"""Steps of a run that is to be caught at work, however slow the machine."""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> FaultRuns:
    return FaultRuns(Path(tmp_path_factory.mktemp("why")))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[FaultRuns]:
    """A yard on a disk of four megabytes; what is printed goes elsewhere."""
    with small_disk(tmp_path) as disk:
        yield FaultRuns(disk / "runs", printed=tmp_path / "printed")


def why(path: Path) -> Diagnosis:
    return diagnose(collect_evidence(RunDir(path)))


def test_done(yard: FaultRuns) -> None:
    assert yard.run("done", 2)[0] == [0, 0]
    found = why(yard.path("done"))
    assert (found.verdict, found.source) == ("finished", "status.json")


def test_a_live_run_does_not_notice_and_a_second_launch_leaves_no_trace(yard: FaultRuns) -> None:
    workers = yard.begin("live", 2, step_delay=STEP_DELAY, max_steps=ENDLESS)
    yard.wait_for("live", 2, workers, 1, 0.0)
    found = why(yard.path("live"))
    assert found.verdict == "running", found
    codes, output = yard.run("live", 1)
    assert codes == [2]
    assert "is in use by a live run" in output
    found = why(yard.path("live"))
    assert workers.processes[0].is_alive(), "the first one must be under way still"
    assert found.verdict == "running", "the refusal of the second says nothing of the first"
    workers.signal(signal.SIGTERM)
    assert workers.wait(LAUNCH_TIMEOUT) == [75, 75], workers.output(0)
    found = why(yard.path("live"))
    assert (found.verdict, found.reason) == ("preempted", "SIGTERM")
    assert found.next[0].startswith(f"samestep train --resume {yard.path('live')}")


def test_an_exception_in_the_data_of_one_rank(yard: FaultRuns) -> None:
    assert 0 not in yard.run("raises", 2, trouble="raise", at_rank=1)[0]
    found = why(yard.path("raises"))
    assert (found.verdict, found.ranks, found.source) == ("crashed", [1], "watch/rank_1_exit.json")
    assert "cannot be read" in found.sentence
    assert found.traceback.rstrip().endswith("cannot be read") and "toy.py" in found.traceback
    assert found.next[0] == f"less {yard.path('raises')}/logs/rank_1.log"
    assert found.next[1] == f"samestep train --resume {yard.path('raises')} --nproc 2"
    assert read_json(RunDir(yard.path("raises")).status)["status"] == "failed"


def test_a_resume_discards_earlier_exit_reports(yard: FaultRuns) -> None:
    assert 0 not in yard.run("fixed", 1, trouble="raise")[0]
    assert why(yard.path("fixed")).verdict == "crashed"
    assert yard.run("fixed", 1)[0] == [0]
    assert why(yard.path("fixed")).verdict == "finished"
    assert not list(RunDir(yard.path("fixed")).watch.glob("*_exit.json"))


def test_nan_for_ever(yard: FaultRuns) -> None:
    assert yard.run("nan", 2, trouble="nan", at_rank=1)[0] == [1, 1]
    found = why(yard.path("nan"))
    assert found.verdict == "diverged"
    assert "was not finite for 5 steps in a row" in found.sentence


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_kill_9_that_nobody_saw(yard: FaultRuns, victims: tuple[int, ...]) -> None:
    """As under srun or mpiexec: no launcher of ours reports the signal."""
    label = f"killed-{len(victims)}-{victims[0]}"
    workers = yard.begin(label, 2, step_delay=STEP_DELAY, max_steps=ENDLESS)
    yard.wait_for(label, 2, workers, 3, 0.0)
    workers.kill(*victims)
    yard.end(workers)
    found = why(yard.path(label))
    assert found.verdict == "killed", found
    assert list(found.ranks) == list(victims) or label in yard.ended_by_force, found
    assert f"samestep train --resume {yard.path(label)}" in found.next[-1]


def test_a_user_error_when_a_run_is_opened_again(yard: FaultRuns) -> None:
    assert yard.run("mistake", 2, max_time="0s")[0] == [75, 75]
    assert yard.run("mistake", 2, until="nowhere")[0] == [2, 2]
    found = why(yard.path("mistake"))
    assert found.verdict == "user_error"
    assert found.sentence == "until=nowhere is not a stage of faults.toy; choose one of fit"


@pytest.mark.parametrize("removed", [False, True], ids=["full still", "room again"])
def test_a_full_disk(small: FaultRuns, removed: bool) -> None:
    ballast = small.folder.parent / "ballast"
    codes, output = small.run("full", 2, train_with_fault, SaveFault(6, "staged", (0,), fill_file=str(ballast)))
    assert None not in codes and all(codes), (codes, output)
    if removed:
        ballast.unlink()
    found = why(small.path("full"))
    assert found.verdict == "disk", found
    assert "No space left on device" in found.sentence
    assert found.next[1] == f"samestep checkpoints {small.path('full')} --verify"


def test_out_of_memory_and_what_to_reduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trouble = Path(faulty.__file__).with_name("trouble.py")
    settings = {"batch_size": 4, "room": 2, "name": "tight", "log": {"tensorboard": False}}
    settings |= {"distributed": {"device": "cpu"}}
    workers = local.start(train_with, 2, str(trouble), settings, logs=tmp_path / "printed")
    assert workers.wait(LAUNCH_TIMEOUT) == [77, 77], workers.output(0)
    found = why(Path("runs/tight"))
    assert (found.verdict, found.ranks) == ("out_of_memory", [1]), found
    assert "out of memory with batch_size 4" in found.sentence
    assert found.next == ["samestep train --resume runs/tight --nproc 2 --batch_size=2"]


def test_kill_9_under_our_launcher_is_reported_by_it(yard: FaultRuns, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yard.folder / "settings.json"
    settings.write_text(
        json.dumps(toy.settings(yard.folder, step_delay=STEP_DELAY, max_steps=ENDLESS, name="launched"))
    )
    args = ["train", toy.NAME, "--nproc", "2", f"--config={settings}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-m", "samestep", *args], env=env) as launcher:
        try:
            yard.wait_for("launched", 2, launcher, 2, 0.0)
            victim = yard.process_of("launched", 2, 1)
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            assert launcher.wait(LAUNCH_TIMEOUT) == 1
        finally:
            launcher.kill()
    event = list(JsonLines(RunDir(yard.path("launched")).events))[-1]
    assert (event["kind"], event["rank"], event["code"], event["restart"]) == ("ended", 1, -signal.SIGKILL, False)
    found = why(yard.path("launched"))
    assert (found.verdict, found.ranks, found.reason) == ("killed", [1], "SIGKILL")
    assert main(["why", str(yard.path("launched")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "killed"
