"""Puts back what code of a recipe changes while it is only tried.

Followed are the attributes of the objects given, and of objects and containers that those hold, as far as they belong
to a recipe: what samestep itself keeps (feeds, learners, the bench) is not changed by a use of it, except for the
buffers of networks.
"""

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep.checkpoint.state import Stateful, split_state
from samestep.train.api.fit import Fit
from samestep.train.learner.earlier_weights import EarlierWeights
from samestep.train.learner.ema import Average
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.seeding import RandomState

_CONTAINERS = (list, dict, set, deque, defaultdict, OrderedDict, Counter)
_MANY = 1000
"""Containers of more elements are data: what their elements hold is not followed."""
_LARGE = 2**20
"""Tensors and arrays of more bytes are data, and not copied, unless a checkpoint would hold them."""


@contextmanager
def unchanged(objects: Iterable[object], state: Iterable[Stateful], random_state: RandomState) -> Iterator[None]:
    """Afterwards these objects, these parts of a checkpoint and all random generators are as they were before."""
    generators = random_state.rank_state()
    memory = _Memory()
    for part in state:
        memory.add_state(part)
    for thing in objects:
        memory.add(thing)
    try:
        yield
    finally:
        memory.put_back()
        random_state.restore(generators)


class _Memory:
    """What was found, as functions that put it back."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}  # keeps them, so that no other object gets the same id
        self._put_back: list[Callable[[], object]] = []

    def put_back(self) -> None:
        with torch.no_grad():
            for function in self._put_back:
                function()

    def add_state(self, part: Stateful) -> None:
        """A part of a checkpoint. Weights of learners are exchanged and put back by those who keep them."""
        if not isinstance(part, Learner | Average | EarlierWeights):
            for tensor in split_state(part.state_dict())[1].values():
                self._add_tensor(tensor)
        self.add(part)

    def add(self, thing: object) -> None:
        """An object, and all that it holds."""
        waiting = [thing]
        while waiting:
            thing = waiting.pop()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                waiting += self._add_one(thing)

    def _add_one(self, thing: Any) -> list[object]:
        """Note how to put one object back; returns what it holds."""
        if isinstance(thing, nn.Module):
            for buffer in thing.buffers():
                self._add_tensor(buffer)
        elif isinstance(thing, Learner):
            return [thing.module]
        elif isinstance(thing, Tensor):
            if thing.numel() * thing.element_size() <= _LARGE:
                self._add_tensor(thing)
        elif isinstance(thing, np.ndarray):
            if thing.nbytes <= _LARGE and thing.flags.writeable:
                self._put_back.append(partial(np.copyto, thing, thing.copy()))
        elif isinstance(thing, torch.Generator):
            self._put_back.append(partial(thing.set_state, thing.get_state()))
        elif isinstance(thing, np.random.Generator):
            self._put_back.append(partial(setattr, thing.bit_generator, "state", thing.bit_generator.state))
        elif isinstance(thing, random.Random):
            self._put_back.append(partial(thing.setstate, thing.getstate()))
        elif isinstance(thing, tuple):
            return list(thing)
        elif type(thing) in _CONTAINERS:
            return self._add_container(thing)
        elif _is_of_recipe(thing):
            return self._add_attributes(thing)
        return []

    def _add_tensor(self, tensor: Tensor) -> None:
        """Its version would not tell whether it was changed: BatchNorm writes its statistics past that."""
        self._put_back.append(partial(tensor.detach().copy_, tensor.detach().clone()))

    def _add_container(self, container: Any) -> list[object]:
        saved = container.copy()

        def put_back() -> None:
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(saved)

        self._put_back.append(put_back)
        held = list(container.values() if isinstance(container, dict) else container)
        return held if len(held) <= _MANY else []

    def _add_attributes(self, thing: Any) -> list[object]:
        saved = dict(vars(thing))

        def put_back() -> None:
            vars(thing).clear()
            vars(thing).update(saved)

        self._put_back.append(put_back)
        return list(saved.values())


def _is_of_recipe(thing: Any) -> bool:
    """Whether an object's attributes are a recipe's: not those of a class, of samestep itself, or of a library."""
    if isinstance(thing, MetricAccumulator | Fit):
        return True
    is_plain = hasattr(thing, "__dict__") and not isinstance(thing, type | ModuleType | FunctionType)
    return is_plain and not _is_library(type(thing).__module__)


@cache
def _is_library(module: str) -> bool:
    """Whether a module belongs to Python, to samestep itself, or to an installed package."""
    package = module.partition(".")[0]
    if package == "samestep":
        return not module.startswith("samestep.recipes.")
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
