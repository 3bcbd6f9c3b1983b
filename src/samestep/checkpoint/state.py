"""What may be saved, and how a nested state is split into tensors and JSON and merged again.

Tensors are named by the keys that lead to them, joined by "/": `model/blocks.0.weight`. Inside a key "~" is written
"~0" and "/" is written "~1" (a JSON pointer), so that any text can be a key.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from samestep.core.json_files import Json


class Stateful(Protocol):
    """Anything with a state: nested dicts with string keys, whose leaves are tensors or JSON values.

    Tensors are the same on all ranks, or DTensors; of the JSON values rank 0's are saved. Tuples come back as lists.
    """

    def state_dict(self) -> dict[str, Any]:
        """The state now. Loading writes into these same tensors, so they must already have their final shapes."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Load what `state_dict` returned."""


@runtime_checkable
class RankStateful(Protocol):
    """A `Stateful` with a further part that differs from rank to rank: random generators, metric windows."""

    def rank_state(self) -> Json:
        """This rank's own part, as JSON."""

    def load_rank_state(self, states: list[Json]) -> None:
        """Load the parts of all ranks that saved, by rank: as many as there were then, not as there are now."""


@runtime_checkable
class PreparesLoad(Protocol):
    """A `Stateful` whose tensors may not exist before a state is loaded, such as those of an optimizer's first step."""

    def prepare_load(self, saved: dict[str, Json], /) -> None:
        """Make them; `saved` is the saved state without its tensors. Called before `state_dict` gives those to fill."""


@runtime_checkable
class PreparesSave(Protocol):
    """A `Stateful` with something to do before its state is saved, such as syncing files that the state counts on. A
    state is also read for other reasons, as often as after every step."""

    def prepare_save(self) -> None:
        """Called on every rank before the state of a checkpoint is taken."""


def join_keys(keys: Sequence[str]) -> str:
    """The name of the tensor that these keys lead to, or the prefix of several."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys)


def unescape_key(part: str) -> str:
    """The key that one part of a tensor's name was made from."""
    return part.replace("~1", "/").replace("~0", "~")


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Json], dict[str, torch.Tensor]]:
    """The state without its tensors, as JSON, and the tensors by name."""
    tensors: dict[str, torch.Tensor] = {}
    return _without_tensors(state, (), tensors), tensors


def merge_state(
    live: Mapping[str, Any], saved: Mapping[str, Json], tensors: Mapping[str, torch.Tensor], under: Sequence[str] = ()
) -> dict[str, Any]:
    """A state with the shape of `live`, the tensors of `tensors` and the JSON of `saved`.

    JSON comes back just as it was saved: a dict of metrics may have had more or fewer keys then than it has now.
    """
    # a copy of the same type, because a module's state dict carries version metadata as an attribute
    merged = copy.copy(live) if isinstance(live, dict) else dict(live)
    for key, value in live.items():
        if isinstance(value, torch.Tensor):
            merged[key] = tensors[join_keys((*under, key))]
        elif key not in saved:
            del merged[key]
    for key, value in saved.items():
        nested = live.get(key)
        if isinstance(value, dict) and isinstance(nested, Mapping):
            value = merge_state(nested, value, tensors, (*under, key))
        merged[key] = value
    return merged


def _without_tensors(
    state: Mapping[str, Any], under: tuple[str, ...], tensors: dict[str, torch.Tensor]
) -> dict[str, Json]:
    plain: dict[str, Json] = {}
    for key, value in state.items():
        here = (*under, _text(key, under))
        if isinstance(value, torch.Tensor):
            tensors[join_keys(here)] = value
        elif isinstance(value, Mapping):
            plain[key] = _without_tensors(value, here, tensors)
        else:
            check_json(value, here)
            plain[key] = value
    return plain


def check_json(value: Json, under: tuple[str, ...]) -> None:
    """Raise TypeError for what JSON would lose or change; the message names where it is."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_json(inner, (*under, _text(key, under)))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            check_json(inner, (*under, str(number)))
    elif value is not None and not isinstance(value, str | int | float):
        raise TypeError(
            f"state {join_keys(under)!r} is a {type(value).__name__}: "
            "state is tensors under string keys, or JSON values"
        )


def _text(key: object, under: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise TypeError(f"state {join_keys(under)!r} has the key {key!r}: keys of a state are strings")
    return key
