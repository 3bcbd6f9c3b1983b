"""Which parameters are trained, each with its factor of the learning rate, its weight decay, and the steps it moves in.

    groups={"head.*": Group(rate=0.1, decay=0.0), "embed*": Group(train_from=100)}

Patterns are those of file names (`*` also matches dots), and the first that matches a parameter's name counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from samestep.core.errors import UserError
from samestep.core.near_names import nearest
from samestep.parallel.build import without_wrappers

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_WITHOUT_DECAY = (*EMBEDDINGS, nn.LayerNorm, nn.RMSNorm)  # norms may be over several dimensions


@dataclass(frozen=True)
class Group:
    """How the parameters of a pattern are trained. Steps are those of the loop, counted from 0."""

    rate: float = 1.0
    """Times the learning rate of the learner."""
    decay: float | None = None
    """Weight decay; None: that of the learner, and none for norms, biases and embeddings."""
    train_from: int = 0
    """The first step in which they move; before it they are constant, and so is their optimizer state."""
    train_until: int | None = None
    """The first step in which they are constant again; None: they move until the end."""

    def __post_init__(self) -> None:
        if not self.rate >= 0 or (self.decay is not None and not self.decay >= 0):
            raise UserError(f"a group's rate and decay must not be negative, but here is {self}")
        if self.train_from < 0 or (self.train_until is not None and self.train_until <= self.train_from):
            raise UserError(f"a group must have at least one step to train in, from step 0 on, but here is {self}")

    def is_trained_at(self, step: int) -> bool:
        """Whether its parameters move in this step."""
        return self.train_from <= step and (self.train_until is None or step < self.train_until)


@dataclass(frozen=True)
class Trainable:
    """One trainable parameter."""

    name: str
    parameter: nn.Parameter
    group: Group
    decay: float | None
    """Its weight decay; None: what its optimizer has by itself."""


def trained_parameters(
    module: nn.Module, groups: Mapping[str, Group], weight_decay: float | None
) -> Sequence[Trainable]:
    """The trainable parameters in the module's order; norms, biases and embeddings have no decay but a group's."""
    names = parameter_names(module)
    for pattern in groups:
        check_matches(pattern, names.values())
    undecayed = _undecayed(module)
    found = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            own = names[id(parameter)]
            group = next((group for pattern, group in groups.items() if matches(pattern, own)), Group())
            decay = 0.0 if id(parameter) in undecayed else weight_decay
            found.append(Trainable(own[0], parameter, group, decay if group.decay is None else group.decay))
    return found


def torch_groups(parameters: Sequence[Trainable]) -> list[dict[str, Any]]:
    """The parameters as torch's optimizers take them: a group for each rate and decay that occur together."""
    found: dict[tuple[float, float | None], dict[str, Any]] = {}
    for trained in parameters:
        settings = {} if trained.decay is None else {"weight_decay": trained.decay}
        group = found.setdefault((trained.group.rate, trained.decay), {"params": [], **settings})
        group["params"].append(trained.parameter)
    return list(found.values())


def parameter_names(module: nn.Module) -> dict[int, list[str]]:
    """All names of every trainable parameter, by identity: one that is shared has several."""
    found: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            found.setdefault(id(parameter), []).append(without_wrappers(name))
    return found


def matches(pattern: str, names: Sequence[str]) -> bool:
    """Whether one of a parameter's names matches."""
    return any(fnmatchcase(name, pattern) for name in names)


def check_matches(pattern: str, parameters: Any) -> None:
    """Refuse a pattern that matches no parameter; `parameters` are the names of each."""
    if any(matches(pattern, names) for names in parameters):
        return
    every = [name for names in parameters for name in names]
    close = nearest(pattern, every, least=0.0)
    raise UserError(
        f"the pattern {pattern!r} matches no trainable parameter; the closest names are {', '.join(map(repr, close))}"
    )


def _undecayed(module: nn.Module) -> set[int]:
    """Parameters without decay, by identity: one that is shared with an embedding counts as an embedding."""
    return {
        id(parameter)
        for part in module.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.ndim < 2 or name.endswith("bias") or isinstance(part, _WITHOUT_DECAY)
    }
