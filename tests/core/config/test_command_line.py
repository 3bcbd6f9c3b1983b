"""Command-line args as settings."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.config import build
from samestep.core.config.command_line import (
    BACK_TO_DEFAULT,
    Alias,
    parse_settings,
    split_args,
    split_options,
    switch_takes,
    takes_any,
)
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Distributed:
    backend: str = "auto"
    mixed_precision: Literal["auto", "none", "bf16", "fp16"] = "none"


@dataclass(frozen=True)
class Checkpoint:
    every_steps: int = 0
    weights: bool = False


@dataclass(frozen=True)
class Toy:
    prompt: str = ""
    use_projection: bool = True
    no_cuda: bool = False
    cuda: bool = True
    maybe: bool | None = None
    learning_rate: float = 0.1
    mix: dict[str, float] = field(default_factory=dict)
    distributed: Distributed = Distributed()
    checkpoint: Checkpoint = Checkpoint()


ALIASES: dict[str, str | Alias] = {
    "lr": "learning_rate",
    "projection": "use_projection",
    "fp16": Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"}),
    "amp-type": Alias("distributed.mixed_precision", {"half": "fp16", "brain": "bf16"}),
}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("prompt=x", [("prompt", "x")]),
        ("--prompt x", [("prompt", "x")]),
        ("--prompt=x", [("prompt", "x")]),
        ("prompt=", [("prompt", "")]),
        ("--prompt=", [("prompt", "")]),
        ("--learning-rate 1e-3", [("learning_rate", "1e-3")]),
        ("learning-rate=1", [("learning_rate", "1")]),
        ("--learning_rate -1", [("learning_rate", "-1")]),
        ("--prompt a=b=c", [("prompt", "a=b=c")]),
        ("prompt=a=b", [("prompt", "a=b")]),
        ("--prompt=--weird", [("prompt", "--weird")]),
        ("prompt=1 prompt=2", [("prompt", "1"), ("prompt", "2")]),
        ("--checkpoint.every-steps 5", [("checkpoint.every_steps", "5")]),
        ("checkpoint.every_steps=5", [("checkpoint.every_steps", "5")]),
        ("distributed=fsdp", [("distributed", "fsdp")]),
        ("--distributed fsdp", [("distributed", "fsdp")]),
        ("--mix.my-key 3", [("mix.my-key", "3")]),
        ("mix.a.b=3", [("mix.a.b", "3")]),
        # flags
        ("--use_projection", [("use_projection", True)]),
        ("--use-projection --cuda", [("use_projection", True), ("cuda", True)]),
        ("--use_projection=False", [("use_projection", "False")]),
        ("--use_projection False", [("use_projection", "False")]),
        ("--use_projection prompt=x", [("use_projection", True), ("prompt", "x")]),
        ("--no-use_projection", [("use_projection", False)]),
        ("--no_use-projection", [("use_projection", False)]),
        ("--no-checkpoint.weights", [("checkpoint.weights", False)]),
        ("--maybe", [("maybe", True)]),
        ("--no-maybe", [("maybe", False)]),
        ("--maybe=null", [("maybe", "null")]),
        # a field that is really named so beats the rule
        ("--no_cuda", [("no_cuda", True)]),
        ("--no-cuda", [("no_cuda", True)]),
        ("--no-cuda false", [("no_cuda", "false")]),
        ("--no-no-cuda", [("no_cuda", False)]),
        # other names
        ("--lr 3", [("learning_rate", "3")]),
        ("lr=3", [("learning_rate", "3")]),
        ("--projection", [("use_projection", True)]),
        ("--no-projection", [("use_projection", False)]),
        ("--fp16", [("distributed.mixed_precision", "fp16")]),
        ("--fp16 --cuda", [("distributed.mixed_precision", "fp16"), ("cuda", True)]),
        ("--no_fp16", [("distributed.mixed_precision", "none")]),
        ("--no-fp16", [("distributed.mixed_precision", "none")]),
        ("--fp16 False", [("distributed.mixed_precision", "none")]),
        ("--fp16=yes", [("distributed.mixed_precision", "fp16")]),
        ("fp16=0", [("distributed.mixed_precision", "none")]),
        ("--amp_type HALF", [("distributed.mixed_precision", "fp16")]),
        ("--amp-type=brain", [("distributed.mixed_precision", "bf16")]),
    ],
)
def test_args_become_settings(line: str, want: list[tuple[str, Any]]) -> None:
    assert parse_settings(line.split(), Toy, ALIASES) == want


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--prompt", "--prompt needs a value; write --prompt=VALUE."),
        ("--prompt --cuda", "--prompt needs a value; write --prompt=--cuda."),
        ("--distributed", "--distributed needs a value"),
        ("+lrr=3", "There is no setting 'lrr'; did you mean lr"),
        ("++promt=x", "There is no setting 'promt'; did you mean prompt"),
        ("~promt", "There is no setting 'promt'; did you mean prompt"),
        ("~prompt=x", "~prompt=x is not possible; write ~prompt for the default of prompt, or prompt=x."),
        ("+prompt", "The argument '+prompt' belongs to no setting; write --prompt."),
        ("~", "There is no setting ''"),
        ("stray", "The argument 'stray' belongs to no setting; write key=value or --key value."),
        ("cuda", "The argument 'cuda' belongs to no setting; write --cuda."),
        ("-cuda", "The argument '-cuda' belongs to no setting; write --cuda."),
        ("--use_projection maybe", "The argument 'maybe' belongs to no setting; write --maybe."),
        ("--no-prompt", "--no-prompt is not possible: prompt is not on or off; write --prompt VALUE."),
        ("--no-distributed", "--no-distributed is not possible"),
        ("--no-lr", "--no-lr is not possible"),
        ("--no-amp-type", "--no-amp-type is not possible"),
        ("--no-use_projection=False", "--no-use_projection takes no value"),
        ("--no-use_projection False", "The argument 'False' belongs to no setting"),
        ("--promt x", "There is no setting 'promt'; did you mean prompt"),
        ("backend=gloo", "There is no setting 'backend'; did you mean distributed.backend?"),
        ("--fp61", "There is no setting 'fp61'; did you mean fp16"),
        ("no_projection=true", "There is no setting 'no_projection'"),
        ("--checkpoint.every 5", "There is no setting 'checkpoint.every'; did you mean checkpoint.every_steps"),
        ("--fp16=abc", "fp16 must be true or false, not 'abc'."),
        ("--fp16 abc", "fp16 must be true or false, not 'abc'."),
        ("--amp-type fp8", "amp-type must be half or brain, not 'fp8'."),
        ("--", "There is no setting ''"),
        ("=x", "There is no setting ''"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_settings(line.split(), Toy, ALIASES)
    assert str(caught.value).startswith(message)


def test_hydras_signs_before_a_setting() -> None:
    found = parse_settings(["+prompt=+a", "++prompt=~b", "~prompt", "~fp16"], Toy, ALIASES)
    prompt = [("prompt", text) for text in ("+a", "~b", BACK_TO_DEFAULT)]
    assert found == [*prompt, ("distributed.mixed_precision", BACK_TO_DEFAULT)]


def test_an_alias_for_nothing_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        parse_settings([], Toy, {"x": "nowhere"})


def test_the_last_of_repeats_wins_when_built() -> None:
    settings = parse_settings(["--lr", "1", "learning_rate=2"], Toy, ALIASES)
    assert build(Toy, dict(settings)).learning_rate == 2.0


everyday = st.sampled_from(
    ["Hello, world", "a=b", "<x>", "${x}", "x: y", "[1", "{a", "null", "true", "-1", "a'b\"c", "~"]
)


@settings(derandomize=True, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")) | everyday)
def test_any_text_passes_as_it_stands(text: str) -> None:
    for args in ([f"--prompt={text}"], [f"prompt={text}"]):
        assert build(Toy, dict(parse_settings(args, Toy))).prompt == text
    if not text.startswith("--"):
        assert build(Toy, dict(parse_settings(["--prompt", text], Toy))).prompt == text


@settings(derandomize=True, deadline=None)
@given(st.lists(st.text() | everyday, max_size=4))
def test_any_args_give_settings_or_an_error(args: list[str]) -> None:
    with suppress(UserError):
        parse_settings(args, Toy, ALIASES)


@pytest.mark.parametrize(
    ("line", "found", "rest"),
    [
        ("--config a.yaml --lr 3", {"config": "a.yaml"}, "--lr 3"),
        ("--lr 3 --config=a.yaml x=1", {"config": "a.yaml"}, "--lr 3 x=1"),
        ("--config_path a --config-name b", {"config-path": "a", "config-name": "b"}, ""),
        ("--configs 3 config=4", {}, "--configs 3 config=4"),
    ],
)
def test_options_of_the_command_are_split_off(line: str, found: dict[str, str], rest: str) -> None:
    assert split_options(line.split(), ("config", "config-path", "config-name")) == (found, rest.split())


@pytest.mark.parametrize("line", ["--config", "--config --lr 3"])
def test_an_option_of_the_command_needs_its_value(line: str) -> None:
    with pytest.raises(UserError, match="--config needs a value"):
        split_options(line.split(), ("config",))


def test_switches_of_the_command() -> None:
    """They take no value, wherever they stand."""
    found, rest = split_options(
        ["a", "--raw", "b", "--which", "best", "--over_write", "c"], ("which",), ("raw", "over-write")
    )
    assert found == {"raw": "", "which": "best", "over-write": ""} and rest == ["a", "b", "c"]
    with pytest.raises(UserError, match=r"--raw takes no value; write --raw\."):
        split_options(["--raw=true"], (), ("raw",))


def test_the_parts_of_a_command_line() -> None:
    """Each option with its value as it was written; nothing is lost, and nothing changes its place."""
    line = "run --a 1 --b-c=x=y key=v --flag --d -1 word --e"
    parts = split_args(line.split(), lambda key, following: key != "flag" and takes_any(key, following))
    assert [part.args for part in parts] == [
        *(("run",), ("--a", "1"), ("--b-c=x=y",), ("key=v",), ("--flag",), ("--d", "-1"), ("word",), ("--e",)),
    ]
    assert [(part.name, part.value, part.is_option) for part in parts if part.value is not None] == [
        ("a", "1", True),
        ("b_c", "x=y", True),
        ("key", "v", False),
        ("d", "-1", True),
    ]
    assert [part.following for part in parts if part.key in ("flag", "e")] == ["--d", None]


@given(st.lists(st.text()))
def test_any_command_line_is_split_without_loss(args: list[str]) -> None:
    for takes in (takes_any, lambda key, following: switch_takes(following), lambda key, following: False):
        assert [arg for part in split_args(args, takes) for arg in part.args] == args
