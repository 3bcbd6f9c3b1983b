"""A teacher that changes in any way is another one: its vectors are refused or computed again, never used."""

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_runs import train, write_records

from changed_files import changed, fields, last_byte, two_tokens_swapped
from encoder_toys import backbone_folder
from samestep import Batch
from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder
from samestep.recipes.distill.teacher import LiveTeacher
from samestep.train.artifacts.array_rows import ArrayRows

pytestmark = pytest.mark.timeout(600)
PROMPTS = {"query": "a list of ", "passage": ""}
CHANGES = {
    "weights": ("model.safetensors", last_byte, "other weights (model.safetensors differs)"),
    "tokenizer": ("tokenizer.json", two_tokens_swapped, "another tokenizer (tokenizer.json differs)"),
    "pooling": (
        "1_Pooling/config.json",
        fields(pooling_mode_mean_tokens=False, pooling_mode_cls_token=True),
        "another pooling (1_Pooling/config.json differs)",
    ),
    "prompt": (
        "config_sentence_transformers.json",
        fields(prompts={**PROMPTS, "query": "the value of "}),
        'another query instruction ("a list of " instead of "the value of ") and other prompts '
        "(config_sentence_transformers.json differs)",
    ),
}
IN_FILES = {**{name: sentence for name, (_, _, sentence) in CHANGES.items()}}
IN_FILES["prompt"] = "other prompts (config_sentence_transformers.json differs)"
"""What is known before anything is computed."""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers."""
    folder = tmp_path_factory.mktemp("teacher")
    source = open_encoder(backbone_folder("bert", folder / "plain"))
    write_encoder(folder / "teacher", source, source.load().state_dict(), "", prompts=PROMPTS)
    return folder / "teacher"


@pytest.fixture(scope="module")
def runs(teacher: Path) -> Path:
    """A folder with a whole run, and one that has ended after phase 1, of this teacher."""
    folder = teacher.parent
    write_records(folder / "records.jsonl", 20)
    train(folder, "verify-mining", *settings(teacher), name="whole")
    train(folder, "verify-mining", *settings(teacher), "until=align", name="aligned")
    return folder


def settings(teacher: Path) -> list[str]:
    data = [f"train_data={teacher.parent / 'records.jsonl'}", "data.limit=null", "data.validation_fraction=0.2"]
    return [*data, f"teacher_model={teacher}", "teacher.max_length=12", "max_steps=1", "checkpoint.background=false"]


def with_change(teacher: Path, kind: str) -> AbstractContextManager[None]:
    file, change, _ = CHANGES[kind]
    return changed(teacher / file, change)


def said(capfd: pytest.CaptureFixture[str]) -> str:
    found = capfd.readouterr()
    return " ".join(f"{found.out} {found.err}".split())


def vectors_of(run: Path) -> torch.Tensor:
    rows = ArrayRows(run / "artifacts" / "teacher" / "vectors")
    return rows.rows(np.arange(len(rows)))["vector"]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_later_stage_refuses_vectors_of_another_teacher(
    kind: str, runs: Path, teacher: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with with_change(teacher, kind):
        assert main(["train", "--resume", str(runs / "aligned"), "until=null"]) == 2
    wanted = f"were computed with {CHANGES[kind][2]}; start a new run that computes them, or use teacher.mode=live"
    assert f"the teacher's vectors in {runs / 'aligned'}" in (found := said(capfd)) and wanted in found


@pytest.mark.parametrize("kind", CHANGES)
def test_evaluate_refuses_vectors_of_another_teacher(
    kind: str, runs: Path, teacher: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with with_change(teacher, kind):
        assert main(["evaluate", str(runs / "whole")]) == 2
        wanted = f"were computed with {CHANGES[kind][2]}; put back the teacher that the run was trained with, or use"
        assert wanted in said(capfd)


def test_evaluate_without_the_teacher_or_with_the_same_one(runs: Path, teacher: Path, tmp_path: Path) -> None:
    with with_change(teacher, "pooling"):
        assert main(["evaluate", str(runs / "whole"), "--no-teacher"]) == 0
    assert main(["evaluate", str(runs / "whole"), "--out", str(tmp_path / "found.json")]) == 0
    assert "teacher" in read_json(tmp_path / "found.json")["models"]


@pytest.mark.parametrize("kind", CHANGES)
def test_another_run_computes_the_vectors_of_another_teacher_again(
    kind: str, runs: Path, teacher: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    common = [*settings(teacher), f"stages_from={runs / 'whole'}", "until=mine", "log.quiet=false"]
    with with_change(teacher, kind):
        again = train(tmp_path, "verify-mining", *common)
    wanted = f"is not taken over from {runs / 'whole'}: the teacher's vectors there were computed with {IN_FILES[kind]}"
    assert wanted in said(capfd)
    assert not torch.equal(vectors_of(again), vectors_of(runs / "whole"))


def test_another_run_takes_over_the_vectors_of_the_same_teacher(
    runs: Path, teacher: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (teacher / "README.md").write_text("A card says nothing of vectors.")
    second = train(tmp_path, "verify-mining", *settings(teacher), f"stages_from={runs / 'whole'}", "log.quiet=false")
    assert said(capfd).count("is taken over from") == 4
    assert torch.equal(vectors_of(second), vectors_of(runs / "whole"))


@pytest.mark.parametrize("kind", CHANGES)
def test_a_killed_cache_is_not_continued_by_another_teacher(
    kind: str,
    runs: Path,
    teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    compute, left = LiveTeacher.vectors, iter(range(3))

    def killed(self: LiveTeacher, batch: Batch, part: str) -> torch.Tensor:
        if next(left, None) is None:
            raise RuntimeError("killed")
        return compute(self, batch, part)

    with monkeypatch.context() as patch:
        patch.setattr(LiveTeacher, "vectors", killed)
        common = [f"out={tmp_path}", "name=run", "distributed.dtype=float32", "until=teacher", "teacher.save_every=1"]
        assert main(["train", "distill", "--preset", "verify-mining", *common, *settings(teacher)]) == 1
    said(capfd)
    with with_change(teacher, kind):
        assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    by_network = "the frozen network 'teacher' is not the one that this run was started with"
    assert (by_network if kind == "weights" else f"were computed with {CHANGES[kind][2]}") in said(capfd)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    torch.testing.assert_close(vectors_of(tmp_path / "run"), vectors_of(runs / "whole"), rtol=0, atol=0)
