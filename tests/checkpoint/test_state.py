"""States come apart and go together without loss, whatever their keys are."""

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samestep.checkpoint.state import plain_key, pointer, put_together, take_apart

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
    return type(one) is type(other) and repr(one) == repr(other)  # tells nan, -0.0 and true from 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(states)
def test_a_state_survives_json_and_being_apart(state: dict) -> None:
    plain, tensors = take_apart(state)
    assert same(put_together(state, json.loads(json.dumps(plain)), tensors), state)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(keys, min_size=1, max_size=4))
def test_names_of_tensors_keep_keys_apart(path: list[str]) -> None:
    assert [plain_key(part) for part in pointer(path).split("/")] == path


def test_json_comes_back_as_saved_though_its_keys_have_changed() -> None:
    weight = torch.ones(2)
    live = {"best": {"loss": 3.0, "new": 1}, "model": {"w": weight}, "gone": 1}
    whole = put_together(live, {"best": {"loss": 0.5, "old": 2}, "model": {}}, {"model/w": weight})
    assert whole == {"best": {"loss": 0.5, "old": 2}, "model": {"w": weight}}
    assert live["best"] == {"loss": 3.0, "new": 1}, "what the owner gave is left alone"


def test_a_modules_notes_on_versions_survive() -> None:
    live = nn.BatchNorm1d(2).state_dict()
    _, tensors = take_apart(live)
    whole = put_together(live, {}, tensors)
    assert isinstance(whole, OrderedDict)
    assert vars(whole) == vars(live)
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
        take_apart(state)
