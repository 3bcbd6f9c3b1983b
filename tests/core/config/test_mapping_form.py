"""A setting whose value may also be written as a mapping: `mixed_precision: {enabled: true, dtype: bfloat16}`."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.core.config import build, compose, dump, fields_of, override
from samestep.core.errors import UserError
from samestep.train.record.config import Config

NAME = "distributed.mixed_precision"
SHARED = "distributed:\n  backend: gloo\n  mixed_precision:\n    enabled: true\n    dtype: bfloat16\n"


def precision(*args: str, **options: Any) -> str:
    return compose(Config, args=args, **options).distributed.mixed_precision


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ([f"{NAME}.enabled=true", f"{NAME}.dtype=bfloat16"], "bf16"),
        ([f"--{NAME}.enabled", f"--{NAME}.dtype", "float16"], "fp16"),
        ([f"{NAME}.dtype=float16"], "fp16"),
        ([f"{NAME}.enabled=true"], "auto"),
        ([f"{NAME}.enabled=false", f"{NAME}.dtype=float16"], "none"),
        ([f"--no-{NAME}.enabled"], "none"),
        ([f"{NAME}={{enabled: true, dtype: float16}}"], "fp16"),
        ([f"{NAME}.enabled=false", f"{NAME}=bf16"], "bf16"),
        ([f"{NAME}=bf16", f"{NAME}.enabled=false"], "none"),
        (["distributed=cpu", f"{NAME}.dtype=bf16"], "bf16"),
    ],
)
def test_on_the_command_line(args: list[str], value: str) -> None:
    assert precision(*args) == value


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "distributed.yaml").write_text(SHARED)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("defaults: [distributed]\nbatch_size: 3\n", "bf16"),
        ("defaults: [distributed, _self_]\ndistributed: {mixed_precision: {enabled: false}}\n", "none"),
        ("defaults: [_self_, distributed]\ndistributed: {mixed_precision: {enabled: false}}\n", "bf16"),
        ("defaults: [distributed]\ndistributed: {mixed_precision: {dtype: float16}}\n", "fp16"),
        ("defaults: [distributed]\ndistributed: {mixed_precision: none}\n", "none"),
        ("defaults: [distributed]\nhalf: 1\n", None),
    ],
)
def test_a_file_next_to_the_one_with_the_defaults_list(conf: Path, text: str, value: str | None) -> None:
    (conf / "own.yaml").write_text(text)
    if value is None:
        with pytest.raises(UserError, match="There is no setting 'half'"):
            precision(config_path=conf, config_name="own")
        return
    assert precision(config_path=conf, config_name="own") == precision(config=conf / "own.yaml") == value
    assert compose(Config, config=conf / "own.yaml").distributed.backend == "gloo"


def test_the_command_line_counts_before_the_file(conf: Path) -> None:
    (conf / "own.yaml").write_text("defaults: [distributed]\n")
    options = {"config_path": conf, "config_name": "own"}
    assert precision(f"{NAME}.dtype=float16", **options) == "fp16"
    assert precision(f"{NAME}.enabled=false", **options) == "none"
    assert precision(f"{NAME}=fp16", **options) == "fp16"
    assert precision("distributed=cpu", **options) == "none"
    sharded = compose(Config, args=["distributed=fsdp"], config_path=conf, config_name="own").distributed
    assert (sharded.strategy, sharded.mixed_precision, sharded.backend) == ("fsdp", "bf16", "gloo")


def test_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "ddp_config.json"
    file.write_text(json.dumps({"distributed": {"mixed_precision": {"enabled": True, "dtype": "float16"}}}))
    assert precision(config=file) == "fp16"


def test_what_is_kept_is_the_one_word() -> None:
    config = build(Config, {"distributed": {"mixed_precision": {"enabled": True, "dtype": "bfloat16"}}})
    assert dump(config)["distributed"]["mixed_precision"] == "bf16"
    assert override(Config, dump(config), args=[f"{NAME}.dtype=float16"]).distributed.mixed_precision == "fp16"
    assert f"{NAME}.enabled" not in {field.path for field in fields_of(Config)}


@pytest.mark.parametrize(
    ("arg", "sentence"),
    [
        (f"{NAME}.dtype=int8", f"{NAME}.dtype must be one of auto, bfloat16, bf16, float16, fp16, not 'int8'"),
        (f"{NAME}.enabled=maybe", f"{NAME}.enabled must be true or false, not 'maybe'"),
        (f"{NAME}.kind=x", f"There is no setting '{NAME}.kind'"),
        (f"{NAME}={{enabled: true, kind: x}}", f"There is no setting '{NAME}.kind'"),
        (f"{NAME}=float16", f"{NAME} must be one of auto, none, tf32, bf16, fp16, not 'float16'"),
    ],
)
def test_nonsense_is_refused_with_its_name(arg: str, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        precision(arg)
    assert str(refusal.value).startswith(sentence)
