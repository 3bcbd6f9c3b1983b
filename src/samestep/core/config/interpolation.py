"""`${...}` in YAML files: the value of another setting, such as `${model.width}` or, beside it, `${.width}`.

Nothing else is looked up, because somebody else may have written the file: it must not read secrets or call functions.
Only environment variables that the user allows by name can be read: `${oc.env:NAME}`, `${oc.env:NAME,default}`.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from samestep.core.errors import UserError

MAX_SIZE = 1_000_000
"""Values and characters that one setting may come to, and characters of all texts that are put together."""
_ENVIRONMENT = "oc.env"
_OPEN = re.compile(r"(?<!\\)\$\{")
_BRACE = re.compile(r"\$\{|\}")

_Place = tuple[Any, ...]  # the keys and indices that lead to a value


class _Found(NamedTuple):
    value: Any
    size: int


def resolve_interpolations(data: Mapping[str, Any], defaults: Mapping[str, Any], allow_env: Collection[str]) -> Any:
    """`data` with every `${...}` replaced by the setting it refers to, which may be one of `defaults`."""
    resolver = _Resolver(_merged(defaults, data), allow_env)
    try:
        return resolver.shaped_as(data, ())
    except RecursionError:
        raise UserError("Settings of the file refer to each other too often; refer to the last one directly.") from None


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}


class _Resolver:
    """Every value is resolved once, and its size is known before it is put together with others."""

    def __init__(self, tree: Mapping[str, Any], allow_env: Collection[str]) -> None:
        self._tree, self._allow_env = tree, allow_env
        self._known: dict[_Place, _Found] = {}
        self._open: set[_Place] = set()
        self._written = self._total = 0

    def shaped_as(self, shape: Any, place: _Place) -> Any:
        """The resolved value at `place`, with those keys alone that `shape` has."""
        if isinstance(shape, Mapping):
            return {key: self.shaped_as(inner, (*place, key)) for key, inner in shape.items()}
        found = self._at(place)
        self._total = self._bounded(self._total + found.size, place)  # a value counts wherever it is used
        return _unescaped(found.value)

    def _at(self, place: _Place) -> _Found:
        if place not in self._known:
            if place in self._open:
                raise _unresolved(place, "it refers to itself")
            self._open.add(place)
            self._known[place] = self._resolved(*self._walk(place), place)
            self._open.discard(place)
        return self._known[place]

    def _walk(self, place: _Place) -> tuple[Any, bool]:
        """What the tree has at a place, and whether it is resolved already, because a `${...}` on the way led there."""
        node, done = self._tree, False
        for depth, key in enumerate(place):
            if _is_open(node) and not done:
                node, done = self._at(place[:depth]).value, True
            node = node[key]
        return node, done

    def _resolved(self, node: Any, done: bool, place: _Place) -> _Found:
        if isinstance(node, Mapping | list):
            keys = list(node) if isinstance(node, Mapping) else range(len(node))
            found = [self._at((*place, key)) for key in keys]
            size = self._bounded(1 + sum(each.size for each in found), place)
            values = [each.value for each in found]
            return _Found(dict(zip(keys, values)) if isinstance(node, Mapping) else values, size)
        if _is_open(node) and not done:
            return self._text(node, place)
        return _Found(node, 1 + len(node) if isinstance(node, str) else 1)

    def _bounded(self, size: int, place: _Place) -> int:
        if max(size, self._written) > MAX_SIZE:
            raise _unresolved(place, f"it comes to more than {MAX_SIZE:,} values or characters")
        return size

    def _text(self, text: str, place: _Place) -> _Found:
        """A text with its `${...}` replaced; one that is nothing else becomes the value itself."""
        pieces = list(self._pieces(text, place))
        if len(pieces) == 1 and not isinstance(pieces[0], str):
            return pieces[0]
        size = 1 + sum(len(piece) if isinstance(piece, str) else piece.size for piece in pieces)
        self._written += size
        self._bounded(size, place)
        return _Found("".join(piece if isinstance(piece, str) else str(piece.value) for piece in pieces), size)

    def _pieces(self, text: str, place: _Place) -> Iterator[str | _Found]:
        at = 0
        while found := _OPEN.search(text, at):
            if found.start() > at:
                yield text[at : found.start()]
            end = _closing(text, found.end(), place)
            key = str(self._text(text[found.end() : end], place).value)
            yield self._look_up(key.strip(), place)
            at = end + 1
        if at < len(text):
            yield text[at:]

    def _look_up(self, key: str, place: _Place) -> _Found:
        if ":" in key:
            function, _, argument = key.partition(":")
            return self._call(function, argument, place)
        name = key.lstrip(".")
        dots = len(key) - len(name)
        if dots > len(place):
            raise _unresolved(place, f"Interpolation key {key!r} not found")
        target: _Place = place[:-dots] if dots else ()
        for part in name.replace("[", ".").replace("]", "").split("."):
            node = self._at(target).value if target in self._known else self._walk_open(target)
            target = (*target, _key_of(node, part, place, key))
        return self._at(target)

    def _walk_open(self, place: _Place) -> Any:
        node, done = self._walk(place)
        return self._at(place).value if _is_open(node) and not done else node

    def _call(self, function: str, argument: str, place: _Place) -> _Found:
        """The value of an environment variable, where that is allowed; no other function exists."""
        if function.strip() != _ENVIRONMENT:
            what = f"{function.strip()!r} is a function, and files may refer to other settings only"
            raise _unresolved(place, what)
        name, comma, default = (part.strip() for part in argument.partition(","))
        if name not in self._allow_env:
            raise UserError(
                f"The setting {_dotted(place)} reads the environment variable {name!r}; if you trust the file, allow "
                f"that with --allow-env {name}, or write the value there."
            )
        if name not in os.environ and not comma:
            raise _unresolved(place, f"the environment variable {name} is not set")
        value = os.environ.get(name, default.strip("'\""))
        return _Found(value, 1 + len(value))


def _is_open(node: Any) -> bool:
    return isinstance(node, str) and _OPEN.search(node) is not None


def _closing(text: str, start: int, place: _Place) -> int:
    """Where the brace is that closes a `${` before `start`."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    raise _unresolved(place, "a ${ has no closing brace")


def _key_of(node: Any, part: str, place: _Place, key: str) -> Any:
    """The key or index of a container that `part` of a reference names."""
    keys = list(node) if isinstance(node, Mapping) else range(len(node)) if isinstance(node, list) else []
    found = [each for each in keys if str(each) == part]
    if not found:
        raise _unresolved(place, f"Interpolation key {key!r} not found")
    return found[0]


def _unescaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\\${", "${")
    if isinstance(value, Mapping):
        return {key: _unescaped(item) for key, item in value.items()}
    return [_unescaped(item) for item in value] if isinstance(value, list) else value


def _dotted(place: _Place) -> str:
    return ".".join(str(key) for key in place)


def _unresolved(place: _Place, why: str) -> UserError:
    return UserError(f"The setting {_dotted(place)} cannot be resolved ({why}); fix it in the file.")
