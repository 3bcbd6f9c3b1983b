"""Bounds of numbers, declared in the types of fields."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import pytest

from samestep.core.config import Bounds, CheckedConfig, Count, Decay, Positive, build, fields_of
from samestep.core.errors import UserError

SIGNED_64 = f"of at least {-(2**63)} and at most {2**63 - 1}"


@dataclass(frozen=True)
class Toy:
    steps: Count = 1
    limit: Count | None = None
    beta: Decay = 0.9
    rate: Annotated[float, Bounds(above=0, most=2)] = 1.0
    plain: float = 0.0
    number: int = 0
    unbounded: Annotated[float, Bounds(finite=False)] = 0.0
    sizes: list[Count] = field(default_factory=list)
    factors: dict[str, Positive] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0."),
        ({"steps": "-3"}, "steps must be a whole number of at least 1, not '-3'."),
        ({"limit": 0}, "limit must be a whole number of at least 1 or null, not 0."),
        ({"beta": 1}, "beta must be a number of at least 0 and below 1, not 1."),
        ({"beta": -0.1}, "beta must be a number of at least 0 and below 1, not -0.1."),
        ({"rate": 0}, "rate must be a number above 0 and at most 2, not 0."),
        ({"rate": 2.5}, "rate must be a number above 0 and at most 2, not 2.5."),
        ({"rate": "inf"}, "rate must be a number that is finite, not 'inf'."),
        ({"plain": "nan"}, "plain must be a number that is finite, not 'nan'."),
        (
            {"number": 2**63},
            f"number must be a whole number of at least {-(2**63)} and at most {2**63 - 1}, not {2**63}.",
        ),
        ({"sizes": [3, 0]}, "sizes.1 must be a whole number of at least 1, not 0."),
        ({"factors": {"a": -1}}, "factors.a must be a number above 0, not -1."),
        ({"steps": "many"}, "steps must be a whole number of at least 1, not 'many'."),
    ],
)
def test_a_value_out_of_bounds_is_refused(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        build(Toy, data)
    assert str(refusal.value) == sentence


def test_values_at_the_bounds_are_accepted() -> None:
    toy = build(Toy, {"steps": 1, "limit": "1", "beta": 0, "rate": 2, "number": 2**63 - 1, "unbounded": "inf"})
    assert (toy.steps, toy.limit, toy.beta, toy.rate, toy.number) == (1, 1, 0.0, 2.0, 2**63 - 1)
    assert toy.unbounded == float("inf")


def test_the_list_of_fields_shows_the_bounds() -> None:
    types = {doc.path: doc.type for doc in fields_of(Toy)}
    assert types["steps"] == "int >= 1"
    assert types["limit"] == "int >= 1 | null"
    assert types["beta"] == "float >= 0, < 1"
    assert types["rate"] == "float > 0, <= 2"
    assert types["sizes"] == "list[int >= 1]"
    assert types["plain"] == types["unbounded"] == "float"


@dataclass(frozen=True)
class Inner(CheckedConfig):
    width: Count = 4


@dataclass(frozen=True)
class Unchecked:
    height: Count = 4


@dataclass(frozen=True)
class Checked(CheckedConfig):
    steps: Count = 1
    limit: Count | None = None
    plain: float = 0.0
    name: int | str = "a"
    sizes: list[Count] = field(default_factory=list)
    factors: dict[str, Positive] | None = None
    inner: Inner = field(default_factory=Inner)
    unchecked: Unchecked | None = None


@dataclass(frozen=True)
class WithCondition(Checked):
    def __post_init__(self) -> None:
        if 12 % self.steps:  # would divide by 0 if the bounds were not checked first
            raise UserError("Choose a divisor of 12.")


REFUSED = [
    ({"steps": 0}, "steps must be a whole number of at least 1, not 0."),
    ({"steps": "3"}, "steps must be a whole number of at least 1, not '3'."),
    ({"steps": 1.5}, "steps must be a whole number of at least 1, not 1.5."),
    ({"steps": None}, "steps must be a whole number of at least 1, not None."),
    ({"limit": 0}, "limit must be a whole number of at least 1 or null, not 0."),
    ({"plain": math.inf}, "plain must be a number that is finite, not inf."),
    ({"sizes": (3, 0)}, "sizes.1 must be a whole number of at least 1, not 0."),
    ({"factors": {"a": -1.0}}, "factors.a must be a number above 0, not -1.0."),
    ({"unchecked": Unchecked(0)}, "unchecked.height must be a whole number of at least 1, not 0."),
]


@pytest.mark.parametrize("cls", [Checked, WithCondition])
@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_a_config_made_in_python_refuses_the_same(cls: type, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        cls(**values)
    assert str(refusal.value) == sentence
    with pytest.raises(UserError):
        replace(cls(), **values)


def test_a_config_made_in_python_takes_what_is_within_bounds() -> None:
    made = Checked(2, None, -1, "b", [1, 2], {"a": 0.5}, Inner(1), Unchecked())
    assert (made.sizes, made.factors, made.inner.width) == ([1, 2], {"a": 0.5}, 1)
    with pytest.raises(UserError, match="width must be a whole number of at least 1, not 0"):
        Inner(0)


def test_the_conditions_of_a_class_come_after_its_bounds() -> None:
    with pytest.raises(UserError, match=r"Choose a divisor of 12\."):
        WithCondition(steps=5)


@dataclass(frozen=True)
class Sized(CheckedConfig):
    rows: Count | Literal["auto"] = 8


def test_a_number_or_a_word_keeps_its_bounds_and_names_the_word_that_is_meant() -> None:
    assert Sized(rows="auto") == build(Sized, {"rows": "auto"}) and build(Sized, {"rows": "3"}).rows == 3
    for made in (lambda: Sized(rows=0), lambda: build(Sized, {"rows": "0"})):
        with pytest.raises(UserError, match="rows must be a whole number of at least 1 or auto"):
            made()
    with pytest.raises(UserError, match="not '3'"):
        Sized(rows="3")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"not 'atuo' \(did you mean 'auto'\?\)"):
        build(Sized, {"rows": "atuo"})
