"""The state of optimizers in a checkpoint: tensors by the name of their parameter, everything else as JSON.

A tensor is `state.NAME.KEY`, as torch's own flattened optimizer state has it; one that is made of several (a quantised
one) is `state.NAME.KEY.PART` for each part. Optimizers of a recipe make their state in the first step, so for those the
JSON part describes every tensor, and a fresh optimizer gets tensors to load into before the checkpoint is read.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, zeros
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from samestep.checkpoint.state import check_json
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.train.learner.optimizers.groups import Trainable

MADE = "made"
"""The JSON part that lazy optimizers have in addition to their tensors."""
_ADVICE = "keep numbers and tensors in the state of a parameter, or numbers in a group"


class OptimizerState:
    """The state of the optimizers of one learner."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Trainable], is_lazy: bool
    ) -> None:
        self._optimizers, self._is_lazy = optimizers, is_lazy
        names = {id(trained.parameter): trained.name for trained in parameters}
        self._owners = {
            names[id(parameter)]: (optimizer, parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._first_groups = [_settings(group) for group in self._groups()]
        self._first_attributes = self._attributes()

    def state_dict(self) -> dict[str, Any]:
        """All of the state; the groups' settings come from the recipe, except those that the optimizer changes."""
        tensors = {
            f"state.{name}.{key}": part
            for name, held in self._held().items()
            for whole, value in held.items()
            if isinstance(value, Tensor)
            for key, part in _parts(whole, value).items()
        }
        return {**tensors, MADE: self._made()} if self._is_lazy else tensors

    def prepare_load(self, saved: Mapping[str, Any]) -> None:
        """Make the tensors that a saved state has, and load its numbers; `saved` is its JSON part at least."""
        if not self._is_lazy or MADE not in saved:
            return
        made = saved[MADE]
        for name, (optimizer, parameter) in self._owners.items():
            known, tensors = optimizer.state.get(parameter, {}), made["tensors"].get(name, {})
            state = {key: _fitting(known.get(key), about, parameter) for key, about in tensors.items()}
            optimizer.state[parameter] = state | made["numbers"].get(name, {})
        for group, first, changes in zip(self._groups(), self._first_groups, made["groups"]):
            group |= copy.deepcopy(first)
            group |= {key: tuple(v) if isinstance(first.get(key), tuple) else v for key, v in changes.items()}

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved state, whose tensors may be those of this one, already filled."""
        self.prepare_load(saved)
        for name, tensor in self.state_dict().items():
            if isinstance(tensor, Tensor) and tensor is not saved[name]:
                tensor.copy_(saved[name])

    def _held(self) -> dict[str, dict[str, Any]]:
        """What the optimizers hold, by parameter."""
        return {name: optimizer.state.get(parameter, {}) for name, (optimizer, parameter) in self._owners.items()}

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _made(self) -> dict[str, Json]:
        """Of a lazy optimizer: which tensors there are, what else the state holds, and how the groups changed."""
        self._refuse_other_state()
        tensors: dict[str, dict[str, Json]] = {}
        numbers: dict[str, dict[str, Json]] = {}
        for name, held in self._held().items():
            for key, value in held.items():
                if isinstance(value, Tensor):
                    tensors.setdefault(name, {})[key] = _about(value, f"{key!r} of {name!r}")
                else:
                    _check_number(value, f"{key!r} of {name!r}")
                    numbers.setdefault(name, {})[key] = value
        return {"tensors": tensors, "numbers": numbers, "groups": self._changed_groups()}

    def _changed_groups(self) -> list[dict[str, Json]]:
        found = []
        for group, first in zip(self._groups(), self._first_groups):
            now = _settings(group)
            changes = {key: value for key, value in now.items() if key not in first or not _same(value, first[key])}
            for key, value in changes.items():
                _check_number(value, f"{key!r} of a group")
            found.append(changes)
        return found

    def _refuse_other_state(self) -> None:
        """Refuse what an optimizer keeps in places that are not known to belong to a parameter or a group."""
        known = {id(parameter) for _, parameter in self._owners.values()}
        for optimizer in self._optimizers:
            for key in optimizer.state:
                if id(key) not in known:
                    raise _refusal(optimizer, f"state under {key!r}, which is no parameter")
        for (number, name), value in self._attributes().items():
            if (number, name) not in self._first_attributes or value != self._first_attributes[number, name]:
                raise _refusal(self._optimizers[number], f"state in its attribute {name!r}")

    def _attributes(self) -> dict[tuple[int, str], Any]:
        """Public numbers of the optimizers themselves."""
        return {
            (number, name): value
            for number, optimizer in enumerate(self._optimizers)
            for name, value in vars(optimizer).items()
            if not name.startswith("_") and isinstance(value, int | float)
        }


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a group, without its parameters and its rate, which is set before each step."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "lr", "param_names")}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _parts(key: str, tensor: Tensor) -> dict[str, Tensor]:
    """The plain or sharded tensors that a tensor is made of."""
    if isinstance(tensor, DTensor) or not is_traceable_wrapper_subclass(tensor):
        return {key: tensor}
    return {f"{key}.{part}": getattr(tensor, part) for part in tensor.__tensor_flatten__()[0]}


def _about(tensor: Tensor, what: str) -> dict[str, Json]:
    """What it takes to make such a tensor again, on any number of ranks."""
    placements = tensor.placements if isinstance(tensor, DTensor) else ()
    is_whole = all(isinstance(placement, Shard | Replicate) for placement in placements)
    if not is_whole or (not placements and is_traceable_wrapper_subclass(tensor)):
        raise UserError(f"the optimizer's state {what} is a {type(tensor).__name__} that a checkpoint cannot hold")
    dtype = str(tensor.dtype).removeprefix("torch.")
    cut = next((placement.dim for placement in placements if isinstance(placement, Shard)), None)
    on_host = tensor.ndim == 0 and tensor.device.type == "cpu"  # a count, which torch keeps there on a GPU too
    return {"shape": list(tensor.shape), "dtype": dtype, "shard": cut, "on_host": on_host}


def _fitting(known: Any, about: Mapping[str, Json], parameter: Tensor) -> Tensor:
    """A tensor to load into: the one there is, or a new one that is sharded as the parameter is now."""
    dtype, shape = getattr(torch, about["dtype"]), about["shape"]
    assert isinstance(dtype, torch.dtype)
    if isinstance(known, Tensor) and list(known.shape) == shape and known.dtype == dtype:
        return known
    if about["on_host"]:
        return torch.zeros(shape, dtype=dtype)
    if shape == list(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    if not isinstance(parameter, DTensor) or not shape:
        return torch.zeros(shape, dtype=dtype, device=parameter.device)
    cut = Replicate() if about["shard"] is None else Shard(about["shard"])
    return zeros(shape, dtype=dtype, device_mesh=parameter.device_mesh, placements=[cut])


def _check_number(value: Any, what: str) -> None:
    try:
        check_json(value, ())
    except TypeError:
        raise UserError(
            f"the optimizer's state {what} is a {type(value).__name__}, which a checkpoint cannot hold; {_ADVICE}"
        ) from None


def _refusal(optimizer: torch.optim.Optimizer, what: str) -> UserError:
    return UserError(f"{type(optimizer).__name__} keeps {what}, which a checkpoint cannot hold; {_ADVICE}")
