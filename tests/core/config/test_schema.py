"""Fields as people see them, and which of them may change at resume."""

from dataclasses import MISSING, dataclass, field, make_dataclass, replace
from typing import Any, Literal

import pytest

from samestep.core.config import build, changed, dump, fields_of, free, paths_of


@dataclass(frozen=True)
class Inner:
    """A section."""

    kind: Literal["a", "b"] = "a"
    """Which one."""
    rate: float = 0.5
    """How fast,
    over two lines."""
    bare: int | None = None


@dataclass(frozen=True)
class Base:
    """What all have."""

    seed: int = 0
    """The base's text for seed."""
    out: str = free("runs")
    """Where it goes."""
    inner: Inner = field(default_factory=lambda: Inner(rate=0.9))
    """The section itself."""
    log: Inner = free(factory=Inner)
    """A section that is free as a whole."""


@dataclass(frozen=True)
class Recipe(Base):
    """Inherits, changes a default, adds a field."""

    seed: int = 7
    data: str = field(kw_only=True)
    """Has no default."""
    maybe: Inner | None = None
    """A section that may be absent."""


def docs() -> dict[str, Any]:
    return {doc.path: doc for doc in fields_of(Recipe)}


def test_every_leaf_is_listed_in_order() -> None:
    nested = [f"{name}.{leaf}" for name in ("inner", "log") for leaf in ("kind", "rate", "bare")]
    assert list(docs()) == ["seed", "out", *nested, "data", "maybe.kind", "maybe.rate", "maybe.bare"]


@pytest.mark.parametrize(
    ("path", "type_text", "default", "doc"),
    [
        ("seed", "int", 7, "The base's text for seed."),
        ("data", "str", MISSING, "Has no default."),
        ("inner.kind", "a | b", "a", "Which one."),
        ("inner.rate", "float", 0.9, "How fast, over two lines."),
        ("log.rate", "float", 0.5, "How fast, over two lines."),
        ("inner.bare", "int | null", None, ""),
        ("maybe.rate", "float", 0.5, "How fast, over two lines."),
    ],
)
def test_type_default_and_meaning(path: str, type_text: str, default: object, doc: str) -> None:
    got = docs()[path]
    assert (got.type, got.default, got.doc) == (type_text, default, doc)


def test_freedom_covers_a_whole_section() -> None:
    assert {path for path, doc in docs().items() if doc.free} == {"out", "log.kind", "log.rate", "log.bare"}


def test_a_class_without_source_has_no_meanings() -> None:
    made = make_dataclass("made", [("x", int, 3)], frozen=True)
    assert [(doc.path, doc.default, doc.doc) for doc in fields_of(made)] == [("x", 3, "")]


def test_paths_name_sections_too() -> None:
    assert {"inner", "inner.kind", "maybe", "maybe.kind", "data"} <= paths_of(Recipe).keys()


def test_a_free_field_still_builds_and_is_still_required_without_default() -> None:
    @dataclass(frozen=True)
    class Free:
        x: int = free()

    assert build(Free, {"x": "3"}).x == 3
    assert fields_of(Free)[0].default is MISSING


RECIPE = Recipe(data="d")


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (RECIPE, []),
        (replace(RECIPE, out="elsewhere", log=Inner("b")), []),
        (replace(RECIPE, seed=1, data="e"), ["seed", "data"]),
        (replace(RECIPE, inner=Inner("b", 0.9)), ["inner.kind"]),
        (replace(RECIPE, maybe=Inner()), ["maybe"]),
    ],
)
def test_changed_names_the_fixed_fields_that_differ(other: Recipe, differ: list[str]) -> None:
    assert changed(dump(RECIPE), dump(other), Recipe) == differ
    assert changed(dump(other), dump(RECIPE), Recipe) == differ


def test_a_field_that_an_old_dump_lacks_counts_as_its_default() -> None:
    old = dump(RECIPE)
    del old["seed"], old["inner"]["rate"]
    assert changed(old, dump(RECIPE), Recipe) == []
    assert changed(old, dump(replace(RECIPE, seed=1, inner=Inner())), Recipe) == ["seed", "inner.rate"]


def test_a_removed_field_of_an_old_dump_is_no_change() -> None:
    assert changed({**dump(RECIPE), "gone": 3}, dump(RECIPE), Recipe) == []
