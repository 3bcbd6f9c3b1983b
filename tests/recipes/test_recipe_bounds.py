"""Every number of every recipe, and of the options of its verbs, is refused outside of its bounds."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.config import Bounds, build
from samestep.core.config.bounds import bare, bounds_of
from samestep.core.config.schema import init_fields, members, section, types_of
from samestep.core.errors import UserError
from samestep.train.api.recipe import Verb
from samestep.train.api.recipe_registry import find_recipe

RECIPES = ("mdlm", "gan", "dpo", "distill", "lens")
UNBOUNDED = {  # a seed, values of schedules and of what may be turned round, and limits that the watchdog checks
    "seed",
    "entropy_weight",
    "grpo.entropy_weight",
    "rank.teacher_margin",
    "gumbel_tau_schedule.start",
    "gumbel_tau_schedule.end",
    "alpha_schedule.start",
    "alpha_schedule.end",
    "position",
}


def _classes() -> list[type]:
    found = []
    for name in RECIPES:
        recipe = find_recipe(name)
        verbs = [verb for verb in (recipe.sample, recipe.evaluate) if isinstance(verb, Verb)]
        found += [recipe.config, *(verb.options for verb in verbs)]
    return found


def _numbers(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name and the type of every field that is a number, or is one or null."""
    kinds = types_of(cls)
    for field in init_fields(cls):
        inner, path = section(kinds[field.name]), prefix + field.name
        if inner is not None:
            yield from _numbers(inner, f"{path}.")
        for kind in members(kinds[field.name]):
            if bare(kind) in (int, float):
                yield path, kind


FIELDS = [(cls, path, kind) for cls in _classes() for path, kind in _numbers(cls)]


def _refusal(cls: type, path: str, value: float) -> str:
    data: Any = value
    for part in reversed(path.split(".")):
        data = {part: data}
    with pytest.raises(UserError) as refusal:
        build(cls, data)
    return str(refusal.value)


def _outside(kind: Any, bounds: Bounds) -> st.SearchStrategy[float]:
    low = bounds.above if bounds.least is None else bounds.least
    high = bounds.below if bounds.most is None else bounds.most
    found: list[st.SearchStrategy[float]] = []
    if bare(kind) is int:
        assert low is not None and high is None
        return st.integers(min_value=-(2**63), max_value=int(low) - 1)
    finite = {"allow_nan": False, "allow_infinity": False}
    if low is not None:
        found.append(st.floats(max_value=low, exclude_max=bounds.least is not None, **finite))
    if high is not None:
        found.append(st.floats(min_value=high, exclude_min=bounds.most is not None, **finite))
    return st.one_of(found)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.sampled_from([each for each in FIELDS if bounds_of(each[2])]), st.data())
def test_a_number_out_of_bounds_is_refused(field: tuple[type, str, Any], data: st.DataObject) -> None:
    cls, path, kind = field
    bounds = bounds_of(kind)
    assert bounds is not None
    value = data.draw(_outside(kind, bounds))
    sentence = _refusal(cls, path, value)
    assert sentence.startswith(f"{path} must be ")
    assert bounds.text() in sentence
    assert sentence.endswith(f"not {value!r}.")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_infinite_or_nan(value: float) -> None:
    for cls, path, _ in FIELDS:
        assert _refusal(cls, path, value).endswith(f"not {value!r}.")


def test_no_whole_number_may_exceed_64_bits() -> None:
    for cls, path, kind in FIELDS:
        if bare(kind) is int:
            assert _refusal(cls, path, 10**23).endswith(f"not {10**23}.")


def test_only_numbers_that_may_be_anything_declare_no_bounds() -> None:
    free = {path for _, path, kind in FIELDS if bounds_of(kind) is None and not path.startswith("watch.")}
    assert free <= UNBOUNDED
