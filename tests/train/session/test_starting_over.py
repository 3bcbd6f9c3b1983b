"""A stage that has trained and has no checkpoint left does not begin again unless start_over is set."""

import json
import shutil
from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.data.chosen_rows import ReadOptions
from samestep.train.api.stage_feeds import FeedName, check_data
from samestep.train.session.stage_state import SaveHistory, checkpoint_to_resume
from samestep.world.world import World
from toys import run_on_ranks
from train.resumed_line import ARGS, LOSS, SOURCE

pytestmark = pytest.mark.timeout(900)
RUN = Path("runs/a")
FOLDER = RUN / "checkpoints" / "fit"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "line.py").write_text(SOURCE)
    (shell.folder / "line_loss.py").write_text(LOSS)
    for name in ("rows.json", "held.json"):
        (shell.folder / name).write_text(json.dumps([{"x": float(i), "y": 2.0 * i} for i in range(20)]))
    return shell


def interrupted(shell: Shell, step: int, ranks: int = 1, *args: str) -> None:
    assert shell(*(args or ARGS), ranks=ranks, env={"FAILS_AT": str(step)})[0] == [1] * ranks


def events(kind: str) -> list[dict]:
    return [event for event in JsonLines(RUN / "events.jsonl") if event["kind"] == kind]


def logged_losses() -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in JsonLines(RUN / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_whose_checkpoints_vanished_is_refused_until_start_over_is_set(shell: Shell, ranks: int) -> None:
    interrupted(shell, 5, ranks)
    before = logged_losses()
    shutil.rmtree(RUN / "checkpoints")
    codes, output = shell("train", "--resume", "a", ranks=ranks)
    assert codes == [2] * ranks, output
    folder = FOLDER.absolute()
    assert (
        f"stage 'fit', whose last save was at step 4, has no checkpoint left; restore {folder}, or start the " in output
    )
    assert "with start_over=true" in output
    assert logged_losses() == before and not events("start_over"), "a refusal cuts nothing"
    codes, output = shell("train", "--resume", "a", "start_over=true", ranks=ranks)
    assert codes == [0] * ranks, output
    assert [step for step, _ in logged_losses()] == list(range(1, 9))
    assert logged_losses()[: len(before)] == before, "the same run, from its beginning"
    assert [event["stage"] for event in events("start_over")] == ["fit"]
    assert read_json(RUN / "config.json")["config"]["start_over"] is False
    about = read_json(FOLDER / "step_00000008" / "manifest.json")["about"]
    assert about["config"]["start_over"] is False


def test_an_emptied_folder_counts_as_vanished_and_saves_before_the_new_start_do_not(shell: Shell) -> None:
    interrupted(shell, 5)
    for checkpoint in FOLDER.iterdir():
        shutil.rmtree(checkpoint)
    assert shell("train", "--resume", "a")[0] == [2]
    interrupted(shell, 1, 1, "train", "--resume", "a", "start_over=true")
    assert not list(FOLDER.glob("step_*"))
    interrupted(shell, 3, 1, "train", "--resume", "a")
    assert len(events("start_over")) == 1, "start_over was recorded already, and nothing was saved since"
    shutil.rmtree(FOLDER)
    codes, output = shell("train", "--resume", "a")
    assert codes == [2] and "whose last save was at step 2" in output


@pytest.mark.parametrize("ranks", [1, 2])
def test_checkpoints_that_are_all_damaged_are_named_as_such(shell: Shell, ranks: int) -> None:
    interrupted(shell, 5, ranks)
    for checkpoint in FOLDER.iterdir():
        (checkpoint / "state.json").unlink()
    codes, output = shell("train", "--resume", "a", ranks=ranks)
    assert codes == [2] * ranks
    assert (
        "whose last save was at step 4, has no intact checkpoint left (step_00000004: state.json is missing; " in output
    )
    assert "start_over=true" in output
    interrupted(shell, 1, ranks, "train", "--resume", "a", "start_over=true")
    codes, output = shell("train", "--resume", "a", ranks=ranks)
    assert codes == [0] * ranks, output
    assert [step for step, _ in logged_losses()] == list(range(1, 9))


def test_a_run_that_never_saved_simply_begins(shell: Shell) -> None:
    interrupted(shell, 1)
    assert not events("save")
    codes, output = shell("train", "--resume", "a")
    assert codes == [0], output
    assert not events("start_over")


def test_start_over_throws_nothing_away(shell: Shell) -> None:
    interrupted(shell, 5)
    codes, output = shell("train", "--resume", "a", "start_over=true", env={"FAILS_AT": "7"})
    assert "resumed from" in output
    assert [event["step"] for event in events("resume")] == [4]
    assert not events("start_over")
    assert shell("train", "--resume", "a")[0] == [0]
    shutil.rmtree(RUN / "checkpoints")
    codes, output = shell("train", "--resume", "a")
    assert codes == [0] and "is done already" in output, "a finished stage needs none"


def on_disks_of_their_own(folder: Path) -> None:
    """Only rank 0 has the events, and the data's fingerprint."""
    world = World.join(device="cpu", timeout=60)
    rundir = RunDir(folder / str(world.rank))
    if world.is_main:
        JsonLines(rundir.events).append({"kind": "save", "stage": "fit", "step": 4})
    store = Store(rundir.checkpoints("fit"), world, shared=False)
    with pytest.raises(UserError, match="whose last save was at step 4, has no checkpoint left"):
        checkpoint_to_resume(store, "fit", rundir, start_over=False)
    assert checkpoint_to_resume(store, "fit", rundir, start_over=True) == (None, True)
    name = FeedName("fit", "training", 0)
    check_data([1, 2, 3], name, rundir, world, ReadOptions(seed=0))
    check_data([1, 2, 3], name, rundir, world, ReadOptions(seed=0))
    with pytest.raises(UserError, match="the training data of stage 'fit' has changed"):
        check_data([1, 2, 4], name, rundir, world, ReadOptions(seed=0))
    assert rundir.first_launch.exists() == world.is_main
    world.leave()


def test_rank_0_decides_for_all_where_no_disk_is_shared(tmp_path: Path) -> None:
    run_on_ranks(on_disks_of_their_own, 2, tmp_path, logs=tmp_path / "logs")


def test_saves_are_those_of_the_stage_since_it_was_started_over(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    assert SaveHistory.read(rundir, "fit") == SaveHistory()
    lines = [{"kind": "save", "stage": "fit", "step": 4}, {"kind": "save", "stage": "other", "step": 9}]
    rundir.events.write_text("".join(json.dumps(line) + "\n" for line in lines) + '[1]\n{"kind": "sa')
    assert SaveHistory.read(rundir, "fit") == SaveHistory(last=4), "a half line is no reason to fail"
    rundir.events.write_text(json.dumps(lines[0]) + '\n{"kind": "start_over", "stage": "fit"}\n')
    assert SaveHistory.read(rundir, "fit") == SaveHistory(has_started_over=True)
    assert SaveHistory.read(rundir, "fit").refusal("fit", rundir, "step 4: gone") == ""
    assert "no intact checkpoint left (step 4: gone)" in SaveHistory().refusal("fit", rundir, "step 4: gone")
