"""The fields of a config class as people see them: dotted names, meanings, and the name they probably meant."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samestep.core.config_types import (
    MISSING,
    default_of,
    holds_dict,
    init_fields,
    listed,
    section,
    type_text,
    types_of,
)
from samestep.core.errors import UserError

_NEAR = 0.6  # least likeness of a name that is offered in place of an unknown one
_OFFERED = 3


@dataclass(frozen=True)
class FieldDoc:
    """One field that can be set: where it is, what it takes, what it is otherwise, what it means."""

    path: str
    """Dotted name."""
    type: str
    """Type, for reading."""
    default: Any
    """Value when nobody sets it; MISSING if it must be set."""
    doc: str
    """Meaning: the text under the field in the source."""
    free: bool
    """Whether it may change when a run is resumed."""


def fields_of(cls: type) -> list[FieldDoc]:
    """Every field of a config class, nested and inherited ones too, in the order of the source."""
    return list(_walk(cls, "", None, False))


def _walk(cls: type, prefix: str, base: Any, free: bool) -> Iterator[FieldDoc]:
    kinds, docs = types_of(cls), field_docs(cls)
    for field in init_fields(cls):
        path, kind = prefix + field.name, kinds[field.name]
        default = default_of(field) if base is None else getattr(base, field.name)
        is_free = free or is_marked_free(field.metadata)
        inner = section(kind)
        if inner is not None:
            yield from _walk(inner, f"{path}.", default if isinstance(default, inner) else None, is_free)
        else:
            yield FieldDoc(path, type_text(kind), default, docs.get(field.name, ""), is_free)


def is_marked_free(metadata: Any) -> bool:
    """Whether a field's metadata says that it may change when a run is resumed."""
    return bool(metadata.get("free", False))


def paths_of(cls: type) -> dict[str, Any]:
    """The type of every dotted name, sections included."""
    found: dict[str, Any] = {}
    kinds = types_of(cls)
    for field in init_fields(cls):
        found[field.name] = kinds[field.name]
        inner = section(kinds[field.name])
        if inner is not None:
            found |= {f"{field.name}.{path}": kind for path, kind in paths_of(inner).items()}
    return found


def locate(paths: dict[str, Any], path: str) -> tuple[str, str | None] | None:
    """The field that `path` names, and the key in it when the field is a mapping (`mix.wiki`: `mix`, `wiki`)."""
    if path in paths:
        return path, None
    parts = path.split(".")
    for cut in range(1, len(parts)):
        field, key = ".".join(parts[:cut]), ".".join(parts[cut:])
        if field in paths and holds_dict(paths[field]):
            return field, key
    return None


def field_docs(cls: type) -> dict[str, str]:
    """The text under each field. A field that a subclass only gives another default keeps its parent's text."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        docs |= _docs_in_source(owner)
    return docs


def _docs_in_source(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # built in, made at run time, or typed into a prompt
        return {}
    if not (tree.body and isinstance(tree.body[0], ast.ClassDef)):
        return {}
    body = tree.body[0].body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def unknown(path: str, names: Iterable[str]) -> UserError:
    """The refusal of a name that does not exist, with the nearest that do."""
    names = list(names)
    near = nearest(path, names)
    if near:
        return UserError(f"There is no setting {path!r}; did you mean {listed(near, 'or')}?")
    top = [name for name in names if "." not in name]
    return UserError(f"There is no setting {path!r}; the settings are {listed(top)}.")


def nearest(path: str, names: Iterable[str]) -> list[str]:
    """The names most like `path`, compared as a whole and by their last part, so that `backend` finds `x.backend`."""
    wanted = path.replace("-", "_").lower()

    def likeness(name: str) -> float:
        whole = difflib.SequenceMatcher(None, wanted, name.lower()).ratio()
        last = difflib.SequenceMatcher(None, wanted.rpartition(".")[2], name.lower().rpartition(".")[2]).ratio()
        return max(whole, last)

    scored = sorted(((likeness(name), name) for name in names), key=lambda pair: -pair[0])
    return [name for score, name in scored[:_OFFERED] if score >= _NEAR]


def defaults_of(cls: type, base: Any = None) -> dict[str, Any]:
    """The defaults of a config class as nested values; fields that must be set are absent."""
    kinds, found = types_of(cls), {}
    for field in init_fields(cls):
        value = default_of(field) if base is None else getattr(base, field.name)
        inner = section(kinds[field.name])
        if inner is not None and value is not None:
            found[field.name] = defaults_of(inner, None if value is MISSING else value)
        elif value is not MISSING:
            found[field.name] = value
    return found
