"""The layers of a config and their precedence, group options, and text that stays text."""

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.config_toys import Distributed, Small, Teacher, Toy
from samestep.core.config import Alias, compose, dump, override
from samestep.core.errors import UserError

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"lr": 0.2, "steps": 2, "distributed.timeout": 2},
    "cluster": {"lr": 0.3, "distributed": "cpu"},
}
ALIASES = {"fp16": Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"})}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file below the working directory, which is a fresh folder."""
    monkeypatch.chdir(tmp_path)

    def put(name: str, text: str) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return put


def toy(*args: str, **options: Any) -> Toy:
    return compose(Toy, presets=PRESETS, aliases=ALIASES, args=args, **options)


Write = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("preset", "file", "args", "lr", "timeout"),
    [
        (None, None, [], 0.1, 600.0),  # the class for lr, the base group for timeout
        ("tiny", None, [], 0.2, 2.0),
        ("tiny", "lr: 0.4", [], 0.4, 2.0),
        ("tiny", "distributed: {timeout: 4}", [], 0.2, 4.0),
        ("tiny", "lr: 0.4\ndistributed: {timeout: 4}", ["lr=0.5"], 0.5, 4.0),
        ("tiny", "lr: 0.4\ndistributed.timeout: 4", ["--distributed.timeout", "5"], 0.4, 5.0),
        (None, "preset: tiny\nlr: 0.4", [], 0.4, 2.0),
        (None, "preset: tiny", ["--lr=0.5"], 0.5, 2.0),
        (None, "preset: cluster", ["preset=tiny"], 0.2, 2.0),
        ("cluster", None, ["--preset", "tiny"], 0.2, 2.0),
        ("tiny", "preset: cluster", [], 0.2, 2.0),
        (None, None, ["lr=1", "lr=2"], 2.0, 600.0),
    ],
)
def test_precedence(
    write: Write, preset: str | None, file: str | None, args: list[str], lr: float, timeout: float
) -> None:
    config = write("c.yaml", file) if file else None
    got = toy(*args, preset=preset, config=config)
    assert (got.lr, got.distributed.timeout) == (lr, timeout)
    assert got.preset == ("tiny" if timeout in (2.0, 4.0, 5.0) else "default")


@pytest.mark.parametrize(
    ("preset", "file", "args", "want"),
    [
        (None, None, [], ("auto", "auto", 600.0, "ddp")),
        (None, None, ["distributed=fsdp"], ("auto", "auto", 1800.0, "fsdp")),
        (None, None, ["--distributed", "cpu"], ("cpu", "gloo", 600.0, "ddp")),
        (None, "defaults: [distributed: fsdp]", [], ("auto", "auto", 1800.0, "fsdp")),
        (None, "defaults: [distributed: fsdp, _self_]\ndistributed: {timeout: 9}", [], ("auto", "auto", 9.0, "fsdp")),
        (None, "defaults: [distributed: fsdp]\ndistributed: {timeout: 9}", [], ("auto", "auto", 9.0, "fsdp")),
        # the line's choice takes the place of the file's, of which nothing stays
        (None, "defaults: [distributed: cpu]", ["distributed=fsdp"], ("auto", "auto", 1800.0, "fsdp")),
        (None, "distributed: cpu", ["distributed=fsdp"], ("auto", "auto", 1800.0, "fsdp")),
        # it also beats what the file sets, as far as the option says anything of it
        (None, "distributed: {strategy: ddp, device: x}", ["distributed=fsdp"], ("x", "auto", 1800.0, "fsdp")),
        # but a field on the line beats the option, wherever it stands
        (None, None, ["distributed.backend=gloo", "distributed=fsdp"], ("auto", "gloo", 1800.0, "fsdp")),
        (None, None, ["distributed=cpu", "--distributed.backend", "mpi"], ("cpu", "mpi", 600.0, "ddp")),
        # a preset's choice gives way to the file's and the line's
        ("cluster", None, [], ("cpu", "gloo", 600.0, "ddp")),
        ("cluster", "defaults: [distributed: fsdp]", [], ("auto", "auto", 1800.0, "fsdp")),
        ("cluster", "distributed: fsdp", [], ("auto", "auto", 1800.0, "fsdp")),
        ("cluster", None, ["distributed=ddp"], ("auto", "auto", 600.0, "ddp")),
        ("cluster", "distributed: {backend: mpi}", [], ("cpu", "mpi", 600.0, "ddp")),
        (None, None, ["distributed={backend: x, timeout: 3}"], ("auto", "x", 3.0, "ddp")),
    ],
)
def test_group_options(
    write: Write, preset: str | None, file: str | None, args: list[str], want: tuple[Any, ...]
) -> None:
    config = write("c.yaml", file) if file else None
    got = toy(*args, preset=preset, config=config).distributed
    assert (got.device, got.backend, got.timeout, got.strategy) == want


def test_json_from_a_notebook(write: Write) -> None:
    data = {"lr": 0.7, "distributed": {"backend": "x"}, "distributed.timeout": 7, "name": "${lr}", "mix": {"a.b": 2}}
    got = toy(config=write("c.json", json.dumps(data)))
    assert (got.lr, got.distributed.backend, got.distributed.timeout) == (0.7, "x", 7.0)
    assert (got.name, got.mix) == ("${lr}", {"a.b": 2.0})


def test_a_dumped_config_comes_back_the_same(write: Write) -> None:
    first = toy("name=${x} ???", "distributed=fsdp", "mix={a: 1}", "files=[b]", "teacher.layers=3", preset="tiny")
    assert toy(config=write("c.json", json.dumps(dump(first)))) == first


def test_interpolation_works_in_a_file_and_sees_all_layers(write: Write) -> None:
    text = (
        "name: ${distributed.backend}-${lr}-${steps}\nfiles: ['${name}.txt', plain]\ndistributed: {timeout: '${steps}'}"
    )
    got = toy("lr=0.5", config=write("c.yaml", text), preset="tiny")
    assert (got.name, got.files, got.distributed.timeout) == ("auto-0.5-2", ["auto-0.5-2.txt", "plain"], 2.0)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
"""All that can be a setting."""


@pytest.mark.parametrize("text", ["${lr} \1 ${", "???", "\x010\x01", "a\\${lr}", "${oc.env:HOME}"])
def test_text_of_the_line_is_never_an_expression(write: Write, text: str) -> None:
    """Not even where an expression in a file refers to it."""
    got = toy(f"name={text}", "lr=3", config=write("c.yaml", "files: ['${name}', '${lr}']"))
    assert (got.name, got.files) == (text, [text, "3"])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(TEXTS, TEXTS)
def test_any_text_reaches_the_config(left: str, right: str) -> None:
    got = compose(Small, presets={}, aliases={}, args=[f"--text={left}"])
    assert got.text == left
    got = compose(Small, presets={"p": {"text": right}}, aliases={}, preset="p")
    assert got.text == right


@pytest.mark.parametrize(
    ("file", "args", "want"),
    [
        (None, [], {"wiki": 1.0}),
        (None, ["mix.code=2"], {"wiki": 1.0, "code": 2.0}),
        (None, ["mix={code: 2}"], {"code": 2.0}),
        (None, ["mix={code: 2}", "mix.x=3"], {"code": 2.0, "x": 3.0}),
        (None, ["mix={'${x}': 2}", "mix.x=3"], {"${x}": 2.0, "x": 3.0}),
        ("mix: {a: 1}", [], {"a": 1.0}),
        ("mix: {a: 1}", ["mix.b=2"], {"a": 1.0, "b": 2.0}),
        ("mix.b: 2", [], {"wiki": 1.0, "b": 2.0}),
    ],
)
def test_a_whole_mapping_replaces_and_a_key_adds(
    write: Write, file: str | None, args: list[str], want: dict[str, float]
) -> None:
    assert compose(Small, args=args, config=write("c.yaml", file) if file else None).mix == want


def test_an_entry_cannot_be_added_to_what_is_no_mapping() -> None:
    with pytest.raises(
        UserError, match=r"mix must be a mapping such as {a: b} before an entry can be added, not 'abc'"
    ):
        compose(Small, args=["mix=abc", "mix.x=3"])


def test_args_override_a_dumped_config() -> None:
    data = dump(toy("name=${x}", "lr=3", preset="tiny"))
    args = ["--fp16", "distributed=fsdp", "teacher.layers=3", "mix.code=2", "--flag"]
    got = override(Toy, data, aliases=ALIASES, args=args)
    assert (got.name, got.lr, got.preset, got.flag) == ("${x}", 3.0, "tiny", True)
    assert (got.teacher, got.mix) == (Teacher("t", 3), {"wiki": 1.0, "code": 2.0})
    assert got.distributed == Distributed("auto", "auto", 1800.0, "fp16", "fsdp")
    assert dump(override(Toy, data)) == data


def test_optional_sections() -> None:
    assert toy().teacher is None
    assert toy("teacher.layers=3").teacher == Teacher("t", 3)
    assert toy("teacher={}").teacher == Teacher()
    assert toy("teacher=null").teacher is None


def test_a_mandatory_value_of_a_file_may_come_from_the_line(write: Write) -> None:
    config = write("c.yaml", "lr: ???\nsteps: 4")
    assert toy("lr=0.6", config=config).lr == 0.6
    assert toy(config=config).lr == 0.1


def test_flags_and_aliases_reach_the_config() -> None:
    got = toy("--flag", "--fp16")
    assert (got.flag, got.distributed.mixed_precision) == (True, "fp16")
    assert toy("--flag=False").flag is False


def test_aliases_in_a_file(write: Write) -> None:
    file = write("c.json", '{"fp16": true, "distributed": {"backend": "gloo"}}')
    got = toy(config=file)
    assert (got.distributed.mixed_precision, got.distributed.backend) == ("fp16", "gloo")
    assert toy("--no-fp16", config=file).distributed.mixed_precision == "none"
    for content in ("null", '"fsdp"', "3"):
        with pytest.raises(UserError, match="distributed must be a section with settings"):
            toy(config=write("c.json", f'{{"fp16": true, "distributed": {content}}}'))


def test_dotted_aliases_in_a_file(write: Write) -> None:
    """A section that only aliases stand in need not be one of ours."""
    aliases = {"teacher.depth": "teacher.layers", "wandb.rate": "lr"}
    file = write("c.yaml", "teacher: {path: a, depth: 3}\nwandb: {rate: 0.5}")
    got = compose(Toy, presets=PRESETS, aliases=aliases, config=file)
    assert (got.teacher, got.lr) == (Teacher("a", 3), 0.5)
    assert compose(Toy, presets=PRESETS, aliases=aliases, config=file, args=["teacher.depth=4"]).teacher.layers == 4
    for text in ("wandb: {rate: 0.5, mode: x}", "wandb: 3"):
        with pytest.raises(UserError, match="There is no setting 'wandb"):
            compose(Toy, presets=PRESETS, aliases=aliases, config=write("c.yaml", text))


def test_a_config_without_the_distributed_section(write: Write) -> None:
    assert compose(Small, args=["x=3"]) == Small(3)
    assert compose(Small, config=write("c.yaml", "x: 4")) == Small(4)
    assert compose(Small, presets={"p": {"x": 5}}, preset="p") == Small(5)
    with pytest.raises(UserError, match="There is no setting 'distributed'"):
        compose(Small, args=["distributed=fsdp"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["distributed=zip"], "There is no distributed=zip; choose auto, cpu, ddp or fsdp"),
        (["distributed="], "There is no distributed=; choose auto, cpu, ddp or fsdp"),
        (["teacher=big"], "teacher is a section, not a setting"),
        (["preset=clutser"], "There is no preset 'clutser'; choose cluster or tiny"),
        (["distributed={backnd: x}"], "did you mean distributed.backend"),
        (["teacher.layers=x"], "teacher.layers must be a whole number, not 'x'"),
    ],
)
def test_bad_lines_are_refused_with_a_sentence(args: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        toy(*args)
    assert message in str(caught.value)


def test_a_recipe_without_presets_says_so() -> None:
    with pytest.raises(UserError, match="There is no preset 'big'; this recipe has no presets"):
        compose(Small, preset="big")


@pytest.mark.parametrize(
    ("file", "args", "want"),
    [
        ("lr: 0.4", ["~lr"], {"lr": 0.1}),
        ("lr: 0.4", ["~lr", "++lr=0.5"], {"lr": 0.5}),
        ("lr: 0.4", ["+lr=0.5", "~lr"], {"lr": 0.1}),
        ("steps: 4", ["~lr"], {"lr": 0.1, "steps": 4}),
        ("mix: {wiki: 0.5, code: 0.5}", ["~mix"], {"mix": {"wiki": 1.0}}),
        ("mix: {wiki: 0.5, code: 0.5}", ["~mix.wiki"], {"mix": {"code": 0.5}}),
        ("steps: 4", ["~mix.wiki", "+mix.code=1"], {"mix": {"code": 1.0}}),
        ("distributed: {device: cpu}", ["~distributed.device"], {"distributed.device": "class"}),
        ("defaults: [distributed: fsdp]", ["~distributed"], {"distributed.strategy": "ddp"}),
        ("preset: tiny", ["~preset"], {"preset": "default", "lr": 0.1}),
        ("preset: tiny", ["~lr"], {"preset": "tiny", "lr": 0.1, "steps": 2}),
    ],
)
def test_a_setting_goes_back_to_its_default(write: Write, file: str, args: list[str], want: dict[str, Any]) -> None:
    got = toy(*args, config=write("c.yaml", file))
    assert {path: attrgetter(path)(got) for path in want} == want


def test_an_entry_that_is_not_there_cannot_be_removed(write: Write) -> None:
    with pytest.raises(UserError, match=r"mix has no entry 'code' to remove; leave ~mix\.code out"):
        toy("~mix.code", config=write("c.yaml", "steps: 4"))


def test_a_resumed_run_gets_the_default_back() -> None:
    assert override(Toy, dump(Toy(lr=0.7, steps=3)), args=["~lr"]) == Toy(steps=3)
