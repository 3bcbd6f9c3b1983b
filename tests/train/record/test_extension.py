"""A run may get another length when it is resumed; where its schedule allows it, it is the run of that length."""

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep.checkpoint.loading import read_tensors
from samestep.cli.args import parse_train
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.train.record.config import Config
from samestep.train.record.extension import Extension, LaterLength, find_extension, read_done, require_extendable
from samestep.train.record.plan import Plan
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from samestep.why.report import evidence_lines

pytestmark = pytest.mark.timeout(900)


def rundir_of(folder: Path, config: Config, *, step: int, done: dict[str, Any] | None = None) -> RunDir:
    """A run whose only stage that trains has done so many steps."""
    rundir = RunDir(folder)
    write_json(rundir.first_launch, {"dump": {"data": {}}, "fit": {"plan": Plan.make(config, 1, samples=80).to_json()}})
    (rundir.checkpoints("fit") / f"step_{step:08d}").mkdir(parents=True, exist_ok=True)
    if done is not None:
        write_json(rundir.done("fit"), {"step": step, **done})
    return rundir


def extended(
    folder: Path, step: int, after: int, *, done: dict[str, Any] | None = None, **settings: Any
) -> Extension | None:
    """A run of 100 steps that gets another length after some of them."""
    before = Config(max_steps=100, **settings)
    rundir = rundir_of(folder, before, step=step, done=done)
    found = find_extension(rundir, {"fit": Config(max_steps=after, **settings)}, {"fit": before})
    assert not isinstance(found, LaterLength)
    return found


@pytest.mark.parametrize(
    ("step", "settings", "keeps"),
    [
        (100, {"schedule": "constant", "warmup_steps": 10}, True),
        (100, {"schedule": "plateau"}, True),
        (80, {"schedule": "wsd"}, True),
        (82, {"schedule": "wsd"}, False),
        (10, {"schedule": "cosine", "warmup_steps": 10}, True),
        (12, {"schedule": "cosine", "warmup_steps": 10}, False),
        (12, {"schedule": "linear", "warmup_steps": 10}, False),
        (100, {"schedule": "linear", "final_lr_ratio": 1.0}, True),
    ],
)
def test_the_schedule_decides(tmp_path: Path, step: int, settings: dict[str, Any], keeps: bool) -> None:
    found = extended(tmp_path, step, 200, **settings)
    assert found is not None
    assert (found.stage, found.step, found.before, found.after) == ("fit", step, 100, 200)
    assert found.keeps_rates is keeps


def test_a_shorter_length_than_what_is_done_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"30 steps are fewer than the 50 that stage 'fit' .* has done"):
        extended(tmp_path, 50, 30, schedule="constant")
    assert extended(tmp_path, 50, 100) is None, "the same length is no change"


def test_a_stage_that_stopped_early_needs_more_patience(tmp_path: Path) -> None:
    done = {"stopped_early": "val/loss has not improved for 3 validations", "waited": 3}
    settings = {"done": done, "schedule": "constant"}
    with pytest.raises(UserError, match=r"stopped early after step 50 .* add early_stopping=0, or more than 3"):
        extended(tmp_path / "a", 50, 200, early_stopping=3, **settings)
    for patience in (0, 4):
        assert extended(tmp_path / f"b{patience}", 50, 200, early_stopping=patience, **settings) is not None


def test_only_the_last_stage_or_an_unfinished_one_gets_longer(tmp_path: Path) -> None:
    settings = {"schedule": "constant"}
    rundir = rundir_of(tmp_path, Config(max_steps=100, **settings), step=100, done={})
    before, longer = (dict.fromkeys(["fit", "rank"], Config(max_steps=steps, **settings)) for steps in (100, 200))
    later = find_extension(rundir, longer, before)
    assert isinstance(later, LaterLength) and later.stages == ["rank"], "the stages to come have the new length"
    assert str(later) == "stage 'fit' is done and stays as it is; the new max_steps and epochs are for 'rank'"
    stopped = {name: replace(config, until="fit") for name, config in longer.items()}
    with pytest.raises(UserError, match=r"stage 'fit' of .* is done and cannot become longer, since 'rank' would come"):
        find_extension(rundir, stopped, before)
    write_json(rundir.done("rank"), {"step": 7})
    with pytest.raises(UserError, match=r"stage 'fit' .* is done, and 'rank' came after it"):
        find_extension(rundir, longer, before)


BY_LENGTH = """
from dataclasses import replace
from planted.parts import Small, fit
from samestep import Recipe, Stage
stage = Stage("fit", fit, config=lambda config: replace(config, warmup_steps=config.max_steps // 4))
recipe = Recipe(config=Small, stages=lambda config: [stage])
"""


def test_settings_that_follow_from_the_length_are_refused_before_anything_is_recorded(shell: Shell) -> None:
    Path("by_length.py").write_text(BY_LENGTH)
    run = ["train", "by_length.py", "--no-log.tensorboard", "--schedule", "constant", "--name", "a"]
    assert shell(*run, "--max_steps", "4")[0] == [0]
    recorded = Path("runs/a/config.json").read_text()
    refusal = r"stage 'fit' of runs/a has settings .* makes from the run's length \(warmup_steps\)"
    for extend in ((), ("--extend",)):
        with pytest.raises(UserError, match=refusal):
            parse_train(["--resume", "runs/a", "max_steps=8", *extend])
    codes, output = shell(*run, "--max_steps", "8", "--extend")
    assert codes == [2] and re.search(refusal, output), output
    assert Path("runs/a/config.json").read_text() == recorded
    assert Path("runs/a/artifacts/fit/done.json").exists()
    assert parse_train(["--resume", "runs/a"])[2].max_steps == 4


def test_a_record_of_a_done_stage_that_nobody_wrote(tmp_path: Path) -> None:
    rundir = rundir_of(tmp_path, Config(max_steps=4), step=4, done={})
    assert read_done(rundir, "fit") == {"step": 4}
    write_json(rundir.done("fit"), {"step": -1})
    with pytest.raises(UserError, match=r"done\.json .*step is -1"):
        read_done(rundir, "fit")


def test_the_refusal_says_what_extend_does(tmp_path: Path) -> None:
    rundir = rundir_of(tmp_path, Config(max_steps=100, learning_rate=0.5), step=50)
    longer, before = {"max_steps": 200, "learning_rate": 0.5}, {"fit": Config(max_steps=100, learning_rate=0.5)}
    with pytest.raises(UserError, match=r"with --extend it has 200 steps .* 0\.426777 instead of 0\.25 at step 50"):
        require_extendable(rundir, {"fit": Config(**longer)}, before)
    require_extendable(rundir, {"fit": Config(**longer, extend=True)}, before)


def test_an_extended_run_is_bit_for_bit_the_longer_run(shell: Shell) -> None:
    run = ["train", str(EXAMPLE), *SMALL, "--schedule", "constant", "--validate_every", "3"]
    assert shell(*run, "--name", "a", "--max_steps", "7", ranks=2)[0] == [0, 0]
    codes, output = shell("train", "--resume", "runs/a", "max_steps=10", ranks=2)
    assert codes == [0, 0], output
    assert "stage 'fit' has 10 steps from now on instead of 7" in output
    assert shell(*run, "--name", "b", "--max_steps", "10", ranks=2)[0] == [0, 0]
    ours, theirs = (Path(run, "checkpoints/fit/step_00000010") for run in ("runs/a", "runs/b"))
    for part in ("model/model", "model/optimizer"):
        extended, longer = read_tensors(ours, part), read_tensors(theirs, part)
        assert extended.keys() == longer.keys()
        assert all(torch.equal(extended[name], longer[name]) for name in longer), part
    counts = [read_json(path / "state.json")["progress"]["improvement"] for path in (ours, theirs)]
    assert counts[0] == counts[1], "the validation after the old end does not count"

    run_dir = RunDir(Path("runs/a"))
    assert read_json(run_dir.config)["config"]["max_steps"] == 10
    assert read_json(run_dir.config)["config"]["extend"] is False
    assert read_json(run_dir.first_launch)["fit"]["plan"]["steps"] == 10
    assert read_json(run_dir.done("fit"))["step"] == 10
    events = [row for row in JsonLines(run_dir.events) if row["kind"] == "extended"]
    assert [(row["step"], row["before"], row["after"]) for row in events] == [(7, 7, 10)]
    evidence = collect_evidence(run_dir)
    lines = list(evidence_lines(evidence, diagnose(evidence)))
    assert ("events.jsonl", "stage fit was extended from 7 to 10 steps, after step 7") in lines
    assert [row["step"] for row in JsonLines(run_dir.metrics) if "loss" in row] == list(range(1, 11))

    assert "done already" in shell("train", "--resume", "runs/a")[1], "a later resume keeps the new length"
    with pytest.raises(UserError, match="9 steps are fewer than the 10"):
        parse_train(["--resume", "runs/a", "max_steps=9"])
    with pytest.raises(UserError, match="hidden cannot change"):
        parse_train(["--resume", "runs/a", "max_steps=12", "hidden=9"])


def test_a_record_that_is_written_just_now_is_there_or_not(tmp_path: Path) -> None:
    """At a stage's end ranks may read its record while rank 0 writes it."""
    rundir, end = RunDir(tmp_path), time.monotonic() + 1.0
    rundir.done("fit").parent.mkdir(parents=True)

    def write() -> None:
        while time.monotonic() < end:
            temporary = tmp_path / "temporary"
            temporary.write_text('{"step": 6}')
            temporary.replace(rundir.done("fit"))
            rundir.done("fit").unlink()

    writer = threading.Thread(target=write)
    writer.start()
    found = set()
    while writer.is_alive():
        done = read_done(rundir, "fit")
        found.add(done and done["step"])
    assert found == {None, 6}
