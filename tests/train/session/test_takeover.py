"""`stages_from` takes over what is the same in another run, and says what is not."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.checkpoint.loading import read_tensors
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Stage
from samestep.train.record.config import Config
from samestep.train.session import takeover
from samestep.world.world import World
from train.session.dumped_line import ROWS, SETTINGS, SOURCE

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, `first`."""
    folder = tmp_path_factory.mktemp("takeover")
    (folder / "line.py").write_text(SOURCE)
    np.savetxt(folder / "numbers.txt", np.linspace(-1, 1, ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train("first")
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def train(name: str, *args: str) -> None:
    assert main(["train", "line.py", *SETTINGS, "--name", name, "--no-checkpoint.background", *args]) == 0


def takeovers(name: str) -> dict[str, str]:
    """By stage, the sentence about it."""
    return {e["stage"]: e["text"] for e in JsonLines(RunDir(Path("runs") / name).events) if e["kind"] == "take_over"}


def trained(name: str) -> set[str]:
    """The stages that were trained in this run."""
    return {event["stage"] for event in JsonLines(Path("runs") / name / "events.jsonl") if event["kind"] == "save"}


def weights(name: str, stage: str = "last") -> dict[str, torch.Tensor]:
    newest = max((Path("runs") / name / "checkpoints" / stage).glob("step_*"))
    return read_tensors(newest, "model/model")


def test_every_stage_has_its_own_settings(folder: Path) -> None:
    frozen = read_json(Path("runs/first/first_launch.json"))
    plans = {stage: fixed["plan"] for stage, fixed in frozen.items() if "plan" in fixed}
    for stage, batch in (("fit", 4), ("last", 7)):
        assert plans[stage]["steps_per_epoch"] == -(-plans[stage]["samples"] // batch)
    assert (plans["fit"]["steps"], plans["fit"]["learning_rate"]) == (22, 0.01)
    assert (plans["last"]["steps"], plans["last"]["learning_rate"]) == (3, 0.02)
    last = {row["step"]: row["lr"] for row in JsonLines(Path("runs/first/metrics.jsonl")) if row["stage"] == "last"}
    assert last == {1: 0.02, 2: 0.02, 3: 0.02}, "its schedule is its own, too"
    manifest = read_json(Path("runs/first/checkpoints/fit/step_00000022/manifest.json"))
    assert manifest["about"]["config"]["learning_rate"] == 0.01 and manifest["about"]["config"]["epochs"] == 2


def test_equal_stages_are_taken_over_and_the_rest_is_trained(folder: Path) -> None:
    train("second", "--stages_from", "first", "--last_lr", "0.5", "--until", "fit")
    first, second = (Path("runs") / name for name in ("first", "second"))
    assert takeovers("second") == {
        stage: f"stage {stage!r} is taken over from {Path('runs/first')}" for stage in ("dump", "fit")
    }
    assert read_json(second / "status.json") == {"status": "waiting", "after": "fit"}
    assert read_json(second / "artifacts/fit/done.json")["taken_over_from"] == str(first.absolute())
    assert "taken_over_from" not in read_json(first / "artifacts/fit/done.json")
    for name in ("artifacts/dump/squares/x.npy", "checkpoints/fit/step_00000022/state.json"):
        assert os.path.samefile(first / name, second / name), "large files are not copied"
    train("second", "--stages_from", "first", "--last_lr", "0.5")
    assert trained("second") == {"last"}
    assert "its settings differ (learning_rate, last_lr)" in takeovers("second")["last"]
    train("alone", "--last_lr", "0.5")
    assert all(torch.equal(value, weights("alone")[name]) for name, value in weights("second").items())


def test_a_run_takes_over_what_was_taken_over(folder: Path) -> None:
    train("middle", "--stages_from", "first")
    assert trained("middle") == set()
    shutil.copytree("runs/middle", "runs/kept")
    shutil.rmtree("runs/middle")
    train("third", "--stages_from", "runs/kept", "--fit_batch", "5")
    assert trained("third") == {"fit", "last"}
    assert "is taken over from runs/kept" in takeovers("third")["dump"]
    assert "its settings differ (global_batch_size, fit_batch)" in takeovers("third")["fit"]
    assert "last" not in takeovers("third"), "what follows a stage that is trained is trained"


def test_other_data_or_code_is_named(folder: Path) -> None:
    data, code = Path("numbers.txt"), Path("line.py")
    text, source = data.read_text(), code.read_text()
    data.touch()  # the content is still the same
    train("touched", "--stages_from", "first", "--until", "dump")
    assert trained("touched") == set()
    data.write_text(text.replace("1.0", "2.0"))
    train("data", "--stages_from", "first", "--until", "dump")
    assert "the validation data of stage 'dump' has changed (the content of numbers.txt" in takeovers("data")["dump"]
    data.write_text(text)
    code.write_text(source + "\n# changed\n")
    train("code", "--stages_from", "first", "--until", "dump")
    assert "the recipe's code differs (line.py)" in takeovers("code")["dump"]
    code.write_text(source)
    train("more", "--stages_from", "data", "--until", "fit")
    assert "the content of numbers.txt has changed" in takeovers("more")["dump"]
    shutil.rmtree("runs/touched/artifacts/dump")
    train("unfinished", "--stages_from", "touched", "--until", "dump")
    assert "that run has not finished it" in takeovers("unfinished")["dump"]


def test_a_run_that_does_not_exist_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "line.py", *SETTINGS, "--name", "none", "--stages_from", "nowhere"]) == 2
    assert "'nowhere' is not a run directory" in capsys.readouterr().err


class Killed(BaseException):
    """As if the process were killed."""


def taken(folder: Path, rundir: RunDir, patch: pytest.MonkeyPatch, moments: int) -> bool:
    """Take a stage over, killed after so many of its steps on the disk; whether it came to its end before."""
    done = iter(range(moments))

    def until_killed(work: Any) -> Any:
        def step(*args: Any) -> Any:
            if next(done, None) is None:
                raise Killed
            return work(*args)

        return step

    source = RunDir(folder / "runs" / "first")
    for name in ("write_json", "_rename", "remove_folder", "_link_or_copy"):
        patch.setattr(takeover, name, until_killed(getattr(takeover, name)))
    try:
        takeover._link("fit", source, rundir, lambda: None)
        takeover._publish("fit", source, rundir)
    except Killed:
        return False
    return True


def test_a_kill_at_any_moment_leaves_no_half_stage(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    for moments in range(100):
        rundir = RunDir(tmp_path / str(moments))
        with monkeypatch.context() as patch:
            if taken(folder, rundir, patch, moments):
                break
        is_done = (rundir.artifacts("fit") / "done.json").exists()
        ended.append(is_done)
        takeover.remove_half_taken(rundir)
        assert not (rundir.path / ".taking_over").exists()
        assert (rundir.artifacts("fit") / "done.json").exists() == is_done
        assert bool(list(rundir.path.glob("checkpoints/fit/step_*"))) == is_done
        assert ("fit" in (read_json(rundir.first_launch) or {})) == is_done
    assert 10 < len(ended) < 99 and ended.count(True) == 1, "after the last rename only the hidden folder is left"


def test_data_that_is_not_in_files_is_mentioned(tmp_path: Path) -> None:
    array = {"name": "an array in memory", "size": 8, "sha256": "b"}
    digest = {"sha256": "a", "floats": {}}
    records = {"training": [{"rows": 3, "digest": digest}, {"rows": 3, "files": [array]}]}
    write_json(tmp_path / "first_launch.json", {"fit": {"data": records}})
    found = takeover._compare_data("fit", RunDir(tmp_path), RunDir(tmp_path / "new"), lambda: None)
    assert not found.difference
    assert found.not_compared == " (its training data names no files, and was not compared)"


def test_a_run_cannot_take_over_from_itself(folder: Path) -> None:
    rundir = RunDir(Path("runs/itself"))
    shutil.copytree("runs/first", rundir.path)
    shutil.rmtree(rundir.checkpoints("dump"))
    with pytest.raises(UserError, match="is this run itself"):
        takeover.take_over(
            Stage("dump", lambda bench: None), [], Config(stages_from="itself"), rundir, {}, World.single()
        )
