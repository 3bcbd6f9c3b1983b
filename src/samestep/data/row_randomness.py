"""Finds out whether reading rows draws random numbers.

The states of generators are compared around each read, since two reads of a coin flip often agree. These are the global
generators of Python, numpy and torch, and those that the data holds itself, which are looked for in its attributes and
in what its functions use. What has no state to compare (a clock, a generator without a seed that is made for each row)
shows only when rows are read twice (see chosen_rows.py).
"""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
_MOST_OBJECTS = 5000
"""How many objects are looked at for generators."""
_MOST_ENTRIES = 100
"""The same in one list or dict: data may be a list of a million rows."""
_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, Tensor, np.ndarray, np.generic)
_READING = ("__getitem__", "__getitems__", "rows", "__call__", "forward", "transform")
"""The methods whose global names are followed."""


@dataclass(frozen=True)
class WatchedGenerator:
    """A generator of any library."""

    name: str
    is_global: bool
    """Whether it is one that code draws from without being given one."""
    state: Callable[[], Any]
    restore: Callable[[Any], object]
    draw: Callable[[], object]
    seed: Callable[[int], object]
    """Begins it again from a number of 32 bits."""


class RandomnessWatch:
    """Compares the states of generators around reads, and puts them back at the end."""

    def __init__(self, source: Any, *, own_only: bool = False) -> None:
        """`source` is what may hold generators of its own; `own_only`: the global ones may be drawn from."""
        self._generators = [*([] if own_only else global_generators()), *own_generators(source)]
        self._at_start = [generator.state() for generator in self._generators]

    def read(self, read: Callable[[], T]) -> tuple[T, WatchedGenerator | None]:
        """What `read` returns, and a generator that it draws from, if there is one."""
        before = [generator.state() for generator in self._generators]
        value = read()
        moved = [each for each, state in zip(self._generators, before) if not _same(each.state(), state)]
        return value, self._drawn_from(moved, read) if moved else None

    def _drawn_from(self, moved: list[WatchedGenerator], read: Callable[[], object]) -> WatchedGenerator | None:
        """The first generator whose state after a read depends on the state before: others are seeded by the row."""
        after = [generator.state() for generator in moved]
        for generator in moved:
            generator.draw()
        read()
        return next((each for each, state in zip(moved, after) if not _same(each.state(), state)), None)

    def restore(self) -> None:
        """Put all generators back."""
        for generator, state in zip(self._generators, self._at_start):
            generator.restore(state)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def global_generators() -> list[WatchedGenerator]:
    return [
        _python("Python's `random`", random, is_global=True),
        _legacy_numpy("numpy's `np.random`", np.random, is_global=True),
        _torch("torch's default generator", torch.default_generator, is_global=True),
    ]


def own_generators(source: Any) -> list[WatchedGenerator]:
    """The generators that can be reached from an object, each once."""
    known = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
    waiting, seen, found = [(type(source).__name__, source)], set[int](), []
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value = waiting.pop(0)
        if isinstance(value, _PLAIN) or id(value) in seen or id(value) in known:
            continue
        seen.add(id(value))
        generator = _as_generator(f"its own generator `{name}`", value)
        if generator is not None:
            found.append(generator)
        else:
            waiting += [(f"{name}{part}" if part[:1] in ("", ".", "[") else part, each) for part, each in _parts(value)]
    return found


def _as_generator(name: str, value: Any) -> WatchedGenerator | None:
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _python(name, value)
    if isinstance(value, np.random.RandomState):
        return _legacy_numpy(name, value)
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        restore = partial(setattr, bits, "state")
        seed = lambda number: restore(type(bits)(number).state)  # noqa: E731
        return WatchedGenerator(name, False, lambda: bits.state, restore, bits.random_raw, seed)
    return _torch(name, value) if isinstance(value, torch.Generator) and value.device.type == "cpu" else None


def _python(name: str, source: Any, is_global: bool = False) -> WatchedGenerator:
    return WatchedGenerator(name, is_global, source.getstate, source.setstate, source.random, source.seed)


def _legacy_numpy(name: str, source: Any, is_global: bool = False) -> WatchedGenerator:
    state = partial(source.get_state, legacy=False)
    return WatchedGenerator(name, is_global, state, source.set_state, source.random, source.seed)


def _torch(name: str, source: torch.Generator, is_global: bool = False) -> WatchedGenerator:
    draw = partial(torch.rand, (), generator=source)
    return WatchedGenerator(name, is_global, source.get_state, source.set_state, draw, source.manual_seed)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object is made of, by name; only looked at, nothing of it is called."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", value[key]) for key in list(value)[:_MOST_ENTRIES])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", each) for number, each in enumerate(list(value)[:_MOST_ENTRIES]))
    elif isinstance(value, functools.partial):
        yield from (("", each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType | BuiltinFunctionType):
        yield from (("", each) for each in (value.__self__, getattr(value, "__func__", None)))
    elif isinstance(value, FunctionType):
        yield from _used_by(value)
    else:
        yield from ((f".{key}", each) for key, each in list(_attributes(value).items())[:_MOST_ENTRIES])
        methods = [getattr(type(value), method, None) for method in _READING]
        yield from (("", method) for method in methods if isinstance(method, FunctionType))


def _attributes(value: Any) -> dict[str, Any]:
    try:
        return vars(value)
    except TypeError:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        return {name: getattr(value, name, None) for name in slots if isinstance(name, str)}


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function uses from around it: global names, outer variables and defaults."""
    names = [name for name in function.__code__.co_names if name in function.__globals__]
    yield from ((name, function.__globals__[name]) for name in names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from (("", value) for value in function.__defaults__ or ())
