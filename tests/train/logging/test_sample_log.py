"""samples.jsonl is continued after a resume, each row once, and is bounded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep import UserError, samples
from samestep.core.pages.html import png_size
from samestep.core.rundir import RunDir
from samestep.train.logging import sample_log
from samestep.train.logging.images import MOST_SIDE
from samestep.train.logging.sample_log import SampleLog

PICTURE = torch.linspace(0, 1, 12).view(1, 3, 4)


def rows(run: RunDir) -> list[tuple[Any, ...]]:
    found = map(json.loads, run.samples.read_text().splitlines())
    return [(row["stage"], row["step"], row["name"], row.get("text", row.get("image"))) for row in found]


def pictures(run: RunDir) -> list[str]:
    return sorted(str(path.relative_to(run.path)) for path in run.path.glob("samples/*/*"))


def write(log: SampleLog, steps: Sequence[int]) -> None:
    for step in steps:
        log.write(step, "note", [f"{step} first", samples.Text(f"{step} second")])
        log.write(step, "square", [samples.Image(PICTURE)])
        log.write(step, "circle", [samples.Image(PICTURE)])


def test_a_resumed_stage_has_each_row_and_each_picture_once(tmp_path: Path) -> None:
    whole, run = RunDir(tmp_path / "whole"), RunDir(tmp_path / "killed")
    for folder in (whole, run):
        SampleLog(folder, "before", -1, 4).write(9, "note", ["of another stage"])
    write(SampleLog(whole, "fit", -1, 4), (1, 2, 3, 4))
    write(SampleLog(run, "fit", -1, 4), (1, 2, 3))
    with open(run.samples, "a") as file:
        file.write('{"stage": "fit", "st')  # killed here
    resumed = SampleLog(run, "fit", 2, 4)  # the checkpoint
    assert {step for stage, step, *_ in rows(run) if stage == "fit"} == {1, 2}
    assert len(pictures(run)) == 4
    write(resumed, (2, 3, 4))  # as a validation is repeated that had failed, or `finish`
    assert rows(run) == rows(whole)
    assert pictures(run) == pictures(whole)
    assert pictures(run) == sorted(name for *_, name in rows(run) if name.endswith(".png"))


def test_so_many_of_a_name_and_step_are_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    log = SampleLog(run, "fit", -1, 2)
    log.write(1, "note", list("abc"))
    log.write(1, "note", ["d"])
    log.write(1, "other", ["e"])
    assert [text for *_, text in rows(run)] == ["a", "b", "e"]
    none = RunDir(tmp_path / "none")
    SampleLog(none, "fit", -1, 0).write(1, "note", ["a"])
    assert not none.samples.exists()


def test_a_run_has_a_bounded_size_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_log, "MOST_BYTES", 2000)
    run = RunDir(tmp_path)
    for step in range(0, 40, 2):  # also over several launches
        log = SampleLog(run, "fit", step, 4)
        log.write(step + 1, "note", ["a" * 100])
        log.write(step + 2, "note", ["a" * 100])
    assert 1500 < run.samples.stat().st_size < 2500


def test_a_large_picture_gets_fewer_pixels(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    SampleLog(run, "fit", -1, 4).write(1, "wide", [samples.Image(torch.zeros(3, 100, 3000))])
    content = (run.path / pictures(run)[0]).read_bytes()
    assert max(png_size(content)) <= MOST_SIDE


def test_a_picture_is_what_other_programs_read(tmp_path: Path) -> None:
    from PIL import Image

    run = RunDir(tmp_path)
    colours = torch.arange(4 * 5 * 4, dtype=torch.uint8).view(4, 5, 4)
    for number, channels in enumerate((1, 3, 4)):
        SampleLog(run, "fit", number, 4).write(number + 1, "a", [samples.Image(colours[:channels])])
        with Image.open(run.path / pictures(run)[number]) as read:
            found = torch.tensor(list(read.getdata())).view(5, 4, channels)
        assert (found == colours[:channels].permute(1, 2, 0)).all()


def test_what_is_no_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"samples\.Text"):
        SampleLog(RunDir(tmp_path), "fit", -1, 4).write(1, "note", [3])  # type: ignore[list-item]
