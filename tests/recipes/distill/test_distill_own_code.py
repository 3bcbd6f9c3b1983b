"""A teacher that ships its own code: refused, unless it is said what is meant; what was said is part of its vectors."""

import json
from pathlib import Path

import pytest
from distill_runs import train, write_records

from encoder_toys import backbone_folder
from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.recipes.distill import recipe
from samestep.recipes.distill.stages import resolve_config

STATED = ["teacher.attention=bidirectional", "teacher.append_eos=true"]


@pytest.fixture
def common(tmp_path: Path) -> list[str]:
    teacher = backbone_folder("qwen2", tmp_path / "teacher", without_special=True)
    for name, kind in (("config", "AutoModel"), ("tokenizer_config", "AutoTokenizer")):
        file = teacher / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "auto_map": {kind: "own_code.Own"}}))
    write_records(tmp_path / "records.jsonl", 12)
    return [f"train_data={tmp_path / 'records.jsonl'}", f"teacher_model={teacher}", "max_steps=1"]


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ([], "Set teacher.attention=bidirectional or teacher.attention=causal to say what is meant"),
        (STATED[:1], "Set teacher.append_eos=true or teacher.append_eos=false to say what is meant"),
    ],
)
def test_it_is_refused(
    stated: list[str], sentence: str, common: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "distill", "--preset", "verify", f"out={tmp_path / 'runs'}", *common, *stated]) == 2
    assert sentence in (found := " ".join(capfd.readouterr().err.split())) and "own_code.Own" in found


def test_what_was_stated_is_part_of_its_vectors(
    common: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "verify", *common, *STATED, "log.quiet=false")
    assert "bidirectional attention, ends with the end token" in " ".join(capfd.readouterr().out.split())
    key = read_json(run / "artifacts" / "teacher" / "vectors" / "arrays.json")["key"]["values"]
    assert (key["attention"], key["end token"]) == ("bidirectional", True)
    another = [*common, "teacher.attention=causal", "teacher.append_eos=true", f"stages_from={run}", "until=teacher"]
    train(tmp_path, "verify", *another, "log.quiet=false", name="causal")
    assert "teacher.attention" in " ".join(capfd.readouterr().out.split())


def test_the_default_teacher_is_read_as_its_code_has_it() -> None:
    """Unless it is said otherwise; another teacher is not."""
    name = "infly/inf-retriever-v1-pro"
    for model, stated, wanted in (
        (name, None, "bidirectional"),
        (f"{name}@main", "causal", "causal"),
        ("a/b", None, None),
    ):
        config = recipe.config(teacher_model=model)
        config = type(config)(teacher_model=model, teacher=type(config.teacher)(attention=stated))
        assert resolve_config(config).teacher.attention == wanted
        assert resolve_config(config).teacher.append_eos is (None if model == "a/b" else True)


def test_what_a_built_in_teacher_cannot_have(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "distill", "--preset", "verify", f"out={tmp_path}", STATED[0]]) == 2
    assert "teacher.attention has no effect: the built-in teacher has no folder" in capfd.readouterr().err
