"""Plain data in, typed config out, and every misfit refused in one sentence."""

import json
import math
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.config import Bounds, build, dump
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Distributed:
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    timeout: float = 600.0


@dataclass(frozen=True)
class Teacher:
    path: str
    layers: int = 2


@dataclass(frozen=True)
class Toy:
    use_projection: bool = True
    steps: int = 10
    lr: Annotated[float, Bounds(finite=False)] = 1e-3
    name: str = "run"
    out: Path = Path("runs")
    schedule: Literal["cosine", "wsd"] = "cosine"
    switch: Literal["on", "auto", "off"] = "auto"
    width: Literal[1, 2, 4] = 1
    limit: int | None = None
    label: str | None = None
    precision: Literal["none", "bf16"] | None = None
    size: int | Literal["all"] = "all"
    seed: int | str = 0
    layers: list[int] = field(default_factory=list)
    betas: tuple[float, float] = (0.9, 0.95)
    files: tuple[str, ...] = ()
    mix: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    distributed: Distributed = Distributed(timeout=30.0)
    teacher: Teacher | None = None
    stages: list[Teacher] = field(default_factory=list)
    doubled: int = field(init=False, default=0)


@pytest.mark.parametrize("text", ["true", "True", "YES", "on", "1"])
def test_text_for_true(text: str) -> None:
    assert build(Toy, {"use_projection": text}).use_projection is True


@pytest.mark.parametrize("text", ["false", "False", "NO", "off", "0", 0, False])
def test_text_for_false(text: object) -> None:
    """The trap: `type=bool` makes True of the text "False"."""
    assert build(Toy, {"use_projection": text}).use_projection is False


@pytest.mark.parametrize(
    ("key", "given", "want"),
    [
        ("steps", "3", 3),
        ("steps", "-3", -3),
        ("steps", 3.0, 3),
        ("steps", "1e6", 1_000_000),
        ("lr", "1e-3", 1e-3),
        ("lr", 3, 3.0),
        ("lr", "inf", math.inf),
        ("name", 7, "7"),
        ("name", "null", "null"),
        ("name", "${x}", "${x}"),
        ("name", "", ""),
        ("out", "a/b", Path("a/b")),
        ("schedule", "wsd", "wsd"),
        ("switch", True, "on"),  # YAML reads a bare `on` as a boolean
        ("switch", False, "off"),
        ("width", "4", 4),
        ("limit", "null", None),
        ("limit", "None", None),
        ("limit", "5", 5),
        ("label", "null", None),
        ("label", "none", "none"),
        ("precision", "none", "none"),
        ("precision", "null", None),
        ("size", "all", "all"),
        ("size", "3", 3),
        ("seed", "3", 3),
        ("seed", "x", "x"),
        ("layers", "[1, 2]", [1, 2]),
        ("layers", (1, "2"), [1, 2]),
        ("betas", "[0.8, 0.9]", (0.8, 0.9)),
        ("files", "[a, null, 2024-01-01, no]", ("a", "null", "2024-01-01", "no")),
        ("files", '["a, b", "c"]', ("a, b", "c")),
        ("mix", "{wiki: 1, code: 1e-1}", {"wiki": 1.0, "code": 0.1}),
        ("extra", "{a: 1, b: [x, 2.5]}", {"a": 1, "b": ["x", 2.5]}),
        ("anything", "3", "3"),
        ("distributed", {"backend": "gloo"}, Distributed("gloo", 30.0)),
        ("distributed", "{backend: nccl}", Distributed("nccl", 30.0)),
        ("teacher", {"path": "x"}, Teacher("x")),
        ("teacher", "null", None),
        ("stages", [{"path": "x"}], [Teacher("x")]),
    ],
)
def test_values_become_the_type_of_their_field(key: str, given: object, want: object) -> None:
    got = getattr(build(Toy, {key: given}), key)
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"use_projection": "abc"}, "use_projection must be true or false, not 'abc'."),
        ({"use_projection": 2}, "use_projection must be true or false, not 2."),
        ({"steps": 1.5}, "steps must be a whole number, not 1.5."),
        ({"steps": "1.5"}, "steps must be a whole number, not '1.5'."),
        ({"steps": "abc"}, "steps must be a whole number, not 'abc'."),
        ({"steps": True}, "steps must be a whole number, not True."),
        ({"steps": "inf"}, "steps must be a whole number, not 'inf'."),
        ({"steps": None}, "steps must be a whole number, not None."),
        ({"lr": "fast"}, "lr must be a number, not 'fast'."),
        ({"lr": False}, "lr must be a number, not False."),
        ({"lr": 10**400}, "lr must be a number, not 1"),
        ({"name": False}, "name must be text (put it in quotes), not False."),
        ({"name": ["a"]}, "name must be text (put it in quotes), not ['a']."),
        ({"schedule": "cos"}, "schedule must be one of cosine, wsd, not 'cos' (did you mean 'cosine'?)."),
        ({"limit": "abc"}, "limit must be a whole number or null, not 'abc'."),
        ({"size": "some"}, "size must be a whole number or all, not 'some'."),
        ({"layers": "1,2"}, "layers must be a list such as [a, b] of type list[int], not '1,2'."),
        ({"layers": [1, "x"]}, "layers.1 must be a whole number, not 'x'."),
        ({"betas": [0.9]}, "betas must be a list such as [a, b] of type list[float, float], not [0.9]."),
        ({"mix": "wiki"}, "mix must be a mapping such as {a: b} of type dict[str, float], not 'wiki'."),
        ({"mix": {"wiki": "x"}}, "mix.wiki must be a number, not 'x'."),
        ({"distributed": {"timeout": "soon"}}, "distributed.timeout must be a number, not 'soon'."),
        ({"distributed": 3}, "distributed must be a mapping of the fields of Distributed, not 3."),
        ({"teacher": {}}, "Set teacher.path to text (put it in quotes); it has no default."),
        ({"stages": [{"path": "x", "layers": "y"}]}, "stages.0.layers must be a whole number, not 'y'."),
    ],
)
def test_misfits_are_refused_with_a_sentence(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Toy, data)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(UserError) as caught:
        build(Toy, {"steps": "x" * 1000})
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("data", "near"),
    [
        ({"setps": 1}, "steps"),
        ({"backend": "gloo"}, "distributed.backend"),
        ({"distributed": {"backnd": "gloo"}}, "distributed.backend"),
        ({"distributed": {"lr": 1}}, "lr"),
        ({"use-projection": 1}, "use_projection"),
        ({"stages": [{"path": "x", "layer": 1}]}, "stages.0.layers"),
        ({"doubled": 1}, "nor one of a similar name"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(data: dict[str, Any], near: str) -> None:
    with pytest.raises(UserError, match="There is no setting") as caught:
        build(Toy, data)
    assert near in str(caught.value)


def test_a_nested_default_of_the_parent_stays_below_what_is_given() -> None:
    """The parent's Distributed has a timeout of 30, the class's own default is 600."""
    assert build(Toy, {}).distributed.timeout == 30.0
    assert build(Toy, {"distributed": {"backend": "gloo"}}).distributed == Distributed("gloo", 30.0)


def test_required_fields_and_sections_without_a_default() -> None:
    @dataclass(frozen=True)
    class Needy:
        seed: int
        distributed: Distributed

    assert build(Needy, {"seed": "4"}) == Needy(4, Distributed())
    with pytest.raises(UserError, match="Set seed to a whole number; it has no default"):
        build(Needy, {})


def test_a_check_in_post_init_becomes_a_sentence() -> None:
    @dataclass(frozen=True)
    class Inner:
        lr: float = 1.0

        def __post_init__(self) -> None:
            if self.lr <= 0:
                raise ValueError("lr must be positive")

    @dataclass(frozen=True)
    class Outer:
        optim: Inner = Inner()

    with pytest.raises(UserError, match="optim: lr must be positive"):
        build(Outer, {"optim": {"lr": -1}})


def test_a_type_that_no_config_can_have_is_a_programming_error() -> None:
    @dataclass(frozen=True)
    class Odd:
        when: complex = 0j

    with pytest.raises(AssertionError, match="when"):
        build(Odd, {"when": "1"})


def test_configs_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build(Toy, {}).steps = 3  # type: ignore[misc]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63 - 1)
# Text that reads as null or as a number is taken as such where the field accepts both.
label = texts.filter(lambda text: text != "null")
not_a_number = st.text(alphabet="abc", min_size=1, max_size=4)
teachers = st.builds(Teacher, texts, integers)
toys = st.builds(
    Toy,
    use_projection=st.booleans(),
    steps=integers,
    lr=st.floats(allow_nan=False),
    name=texts,
    out=st.sampled_from([Path("a/b"), Path("."), Path("/x y/${z}"), Path("..")]),
    schedule=st.sampled_from(["cosine", "wsd"]),
    switch=st.sampled_from(["on", "auto", "off"]),
    width=st.sampled_from([1, 2, 4]),
    limit=st.none() | integers,
    label=st.none() | label,
    precision=st.sampled_from([None, "none", "bf16"]),
    size=integers | st.just("all"),
    seed=integers | not_a_number,
    layers=st.lists(integers, max_size=3),
    betas=st.tuples(numbers, numbers),
    files=st.lists(texts, max_size=3).map(tuple),
    mix=st.dictionaries(texts, numbers, max_size=3),
    extra=st.dictionaries(texts, integers | texts | st.lists(texts, max_size=2), max_size=3),
    anything=st.none() | integers | texts,
    distributed=st.builds(Distributed, st.sampled_from(["auto", "nccl", "gloo"]), numbers),
    teacher=st.none() | teachers,
    stages=st.lists(teachers, max_size=2),
)


@settings(derandomize=True, deadline=None)
@given(toys)
def test_a_dump_through_json_builds_an_equal_config(toy: Toy) -> None:
    text = json.dumps(dump(toy), allow_nan=False)
    assert build(Toy, json.loads(text)) == toy


@settings(derandomize=True, deadline=None)
@given(toys)
def test_a_built_config_dumps_to_itself(toy: Toy) -> None:
    assert dump(build(Toy, dump(toy))) == dump(toy)


def test_not_a_number_survives_a_dump() -> None:
    assert math.isnan(build(Toy, dump(Toy(lr=math.nan))).lr)
