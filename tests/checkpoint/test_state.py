"""States are split and merged without loss, whatever their keys are."""

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samestep.checkpoint.state import join_keys, merge_state, split_state, unescape_key

keys = st.text(alphabet="ab./~01 é\ud800", max_size=4)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()))
leaves_and_tensors = st.one_of(leaves, st.integers(0, 9).map(torch.tensor))
states = st.dictionaries(
    keys,
    st.recursive(leaves_and_tensors, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8),
    max_size=4,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return one is other
    return type(one) is type(other) and repr(one) == repr(other)  # distinguishes nan, -0.0, and True from 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(states)
def test_a_state_survives_json_and_being_split(state: dict) -> None:
    plain, tensors = split_state(state)
    assert same(merge_state(state, json.loads(json.dumps(plain)), tensors), state)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(keys, min_size=1, max_size=4))
def test_names_of_tensors_distinguish_all_keys(path: list[str]) -> None:
    assert [unescape_key(part) for part in join_keys(path).split("/")] == path


def test_json_comes_back_as_saved_though_its_keys_have_changed() -> None:
    weight = torch.ones(2)
    live = {"best": {"loss": 3.0, "new": 1}, "model": {"w": weight}, "gone": 1}
    merged = merge_state(live, {"best": {"loss": 0.5, "old": 2}, "model": {}}, {"model/w": weight})
    assert merged == {"best": {"loss": 0.5, "old": 2}, "model": {"w": weight}}
    assert live["best"] == {"loss": 3.0, "new": 1}, "what the owner gave is left alone"


def test_a_modules_version_metadata_survives() -> None:
    live = nn.BatchNorm1d(2).state_dict()
    _, tensors = split_state(live)
    merged = merge_state(live, {}, tensors)
    assert isinstance(merged, OrderedDict)
    assert vars(merged) == vars(live)
    assert "_metadata" in vars(live)


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": {1, 2}}}, "a/b"),
        ({"a": np.float32(1)}, "a"),
        ({"a": [0, {"b": torch.zeros(1)}]}, "a/1/b"),
        ({"a": {3: 1}}, "a"),
        ({"a": [{4: 1}]}, "a/0"),
        ({"a": b"bytes"}, "a"),
    ],
)
def test_what_json_would_lose_is_refused_by_name(state: dict, where: str) -> None:
    with pytest.raises(TypeError, match=f"state '{where}'"):
        split_state(state)
