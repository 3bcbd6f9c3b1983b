"""The split into training, validation and test: by what records say, whatever their order."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.split import TEST, VALIDATION, choose_parts, split_records


def chosen(groups: list[str], fraction: float, seed: int, test: float = 0.0, part: int = VALIDATION) -> set[str]:
    """The groups of a part."""
    parts = choose_parts(groups, fraction, test, seed)
    return {group for group, found in zip(groups, parts, strict=True) if found == part}


def test_a_split_stays_what_it_is() -> None:
    """Resumed runs rely on it, so it must not change with Python's hash seed, the platform or a version."""
    assert sorted(chosen([f"g{n}" for n in range(20)], 0.2, 7)) == ["g15", "g16", "g17", "g2"]


@pytest.mark.parametrize(("count", "validation"), [(2, 1), (3, 1), (10, 1), (11, 2), (70, 7), (100, 10)])
def test_small_sets(count: int, validation: int) -> None:
    found = chosen([str(n) for n in range(count)], 0.1, 0)
    assert len(found) == validation


def test_a_share_that_is_a_whole_number() -> None:
    """100 * 0.07 is a little above 7 in floating point."""
    assert len(chosen([str(n) for n in range(100)], 0.07, 0)) == 7


@pytest.mark.parametrize("groups", [["a"], ["a", "a", "a"]])
def test_one_group_cannot_be_split(groups: list[str]) -> None:
    with pytest.raises(UserError, match=f"the {len(groups)} here cannot be split in 2"):
        chosen(groups, 0.1, 0)


def test_one_large_structure_is_for_training() -> None:
    groups = ["large"] * 90 + ["b"] * 6 + ["c"] * 4
    assert all("large" not in chosen(groups, 0.1, seed) for seed in range(20))
    assert chosen(["a"] * 50 + ["b"] * 49, 0.1, 0) == {"b"}, "the smallest, if none is near"


@settings(max_examples=200, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30).map(str), min_size=2, max_size=80).filter(lambda g: len(set(g)) > 1),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(-(2**63), 2**63 - 1),
    shuffle=st.integers(0, 1000),
)
def test_any_split(groups: list[str], fraction: float, seed: int, shuffle: int) -> None:
    found = chosen(groups, fraction, seed)
    assert found and found < set(groups), "neither side is empty"
    other = list(groups)
    random.Random(shuffle).shuffle(other)
    assert chosen(other, fraction, seed) == found, "the order does not count"
    if max(Counter(groups).values()) == 1:
        assert abs(len(found) - min(max(1, len(groups) * fraction), len(groups) - 1)) <= 1


def test_three_parts() -> None:
    numbers = list(range(100))
    parts = split_records(numbers, [str(n) for n in numbers], validation=0.1, test=0.2, seed=0)
    assert list(map(len, parts)) == [70, 10, 20]
    assert sorted([*parts.train, *parts.validation, *parts.test]) == numbers
    assert parts.train == sorted(parts.train), "in their order"
    without = split_records(numbers, [str(n) for n in numbers], validation=0.1, seed=0)
    assert without.validation == parts.validation and not without.test, "a test part leaves validation what it was"


@pytest.mark.parametrize("groups", [["a", "b"], ["a", "b", "b"]])
def test_two_groups_are_not_three_parts(groups: list[str]) -> None:
    with pytest.raises(UserError, match="cannot be split in 3"):
        choose_parts(groups, 0.1, 0.1, 0)


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30).map(str), min_size=3, max_size=80).filter(lambda g: len(set(g)) > 2),
    validation=st.floats(0.01, 0.99),
    test=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_any_three_parts(groups: list[str], validation: float, test: float, seed: int) -> None:
    parts = choose_parts(groups, validation, test, seed)
    assert set(parts.tolist()) == {0, 1, 2}, "no part is empty"
    assert not chosen(groups, validation, seed, test) & chosen(groups, validation, seed, test, TEST)
    assert np.array_equal(choose_parts(groups[::-1], validation, test, seed)[::-1], parts), "the order does not count"
