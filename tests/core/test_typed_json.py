"""What another process sent has the declared types, or is refused; nothing is converted on the quiet."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.typed_json import from_json


@dataclass(frozen=True)
class Inner:
    count: int
    ok: bool = True


@dataclass(frozen=True)
class Outer:
    name: str
    seconds: float
    inner: Inner | None = None
    many: Sequence[Inner] = ()
    rank: int | None = None


INNERS = st.builds(Inner, st.integers(), st.booleans())
OUTERS = st.builds(
    Outer,
    st.text(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | INNERS,
    st.lists(INNERS, max_size=3),
    st.none() | st.integers(),
)


@given(OUTERS)
def test_what_was_sent_comes_back(sent: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(asdict(sent)))) == sent


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, st.dictionaries(st.sampled_from(["name", "seconds", "inner", "many", "rank", "count"]), JSON))
def test_anything_else_is_a_value_error(data: Any, fields: dict[str, Any]) -> None:
    for candidate in (data, fields, {"name": "x", "seconds": 1, **fields}):
        try:
            found = from_json(Outer, candidate)
        except ValueError:
            continue
        assert type(found.name) is str
        assert type(found.seconds) is float
        assert found.rank is None or type(found.rank) is int
        assert all(type(inner) is Inner and type(inner.count) is int for inner in found.many)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rank": "--out=/tmp/x"}, "Outer.rank cannot be str"),
        ({"rank": True}, "Outer.rank cannot be bool"),
        ({"rank": 1.0}, "Outer.rank cannot be float"),
        ({"seconds": float("nan")}, "Outer.seconds cannot be float"),
        ({"seconds": 10**400}, "Outer.seconds cannot be int"),
        ({"many": "ab"}, "Outer.many cannot be str"),
        ({"many": [{"ok": True}]}, "Inner has no count"),
        ({"inner": [1]}, "Inner must have named fields"),
        ({"name": None}, "Outer.name cannot be NoneType"),
    ],
)
def test_the_message_names_the_field(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        from_json(Outer, {"name": "x", "seconds": 1, **change})


def test_names_that_another_version_added_are_ignored() -> None:
    assert from_json(Inner, {"count": 1, "more": 2}) == Inner(1)
