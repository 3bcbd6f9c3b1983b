"""The optimizers that a learner can have. What is not given here comes from the run's configuration.

bench.learner(net, optimizer=Muon(momentum=0.9))
bench.learner(net, optimizer=lambda params: torch.optim.Adagrad(params, eps=1e-8))
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.train.learner.optimizers.groups import (
    Trainable,
    check_matches,
    matches,
    parameter_names,
    torch_groups,
)
from samestep.train.learner.optimizers.muon import MuonOptimizer, Scaling, hidden_matrices

Factory = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer from groups of parameters, as torch's own take them."""


@dataclass(frozen=True)
class RunSettings:
    """What the run's configuration says about every optimizer."""

    betas: tuple[float, float]
    """AdamW's."""
    eps: float
    """AdamW's."""
    is_sharded: bool
    """Whether the ranks share the parameters among them; also where there is only one rank yet."""


class OptimizerChoice(Protocol):
    """An optimizer with its settings."""

    skips_on_device: ClassVar[bool]
    """Whether a step changes nothing where `found_inf` is one, so that the host need not know it."""
    is_lazy: ClassVar[bool]
    """Whether the state of a parameter is made in its first step, in a way that is not known before."""

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        """One or more torch optimizers that have each of the parameters once, with rates that are set before a step."""


@dataclass(frozen=True)
class AdamW:
    """torch's fused AdamW; None: as in the configuration (`beta1`, `beta2`, `adam_eps`)."""

    beta1: float | None = None
    """Decay of the mean; None: the setting `beta1`."""
    beta2: float | None = None
    """Decay of the square; None: the setting `beta2`."""
    eps: float | None = None
    """Added to the root of the square; None: the setting `adam_eps`."""
    skips_on_device: ClassVar[bool] = True
    is_lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_adam(self)

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        betas, eps = _given(self, run)
        optimizer = torch.optim.AdamW(torch_groups(parameters), lr=0.0, betas=betas, eps=eps, fused=True)
        for trained in parameters:  # made now, so that a checkpoint can be loaded into it
            optimizer.state[trained.parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=trained.parameter.device),
                "exp_avg": torch.zeros_like(trained.parameter),
                "exp_avg_sq": torch.zeros_like(trained.parameter),
            }
        return [optimizer]


@dataclass(frozen=True)
class SGD:
    """torch's SGD. Its weight decay is part of the gradient, so it goes through the momentum."""

    momentum: float = 0.9
    """How much of the last update is kept; 0: no momentum."""
    nesterov: bool = False
    """Whether the gradient is added to the momentum once more."""
    skips_on_device: ClassVar[bool] = False
    is_lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_fraction("SGD's momentum", self.momentum)
        if self.nesterov and not self.momentum:
            raise UserError("nesterov needs a momentum above 0: give SGD a momentum, or leave nesterov out")

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        """One for all parameters; its momentum begins at zero, which makes the same first step as torch's own."""
        groups = torch_groups(parameters)
        optimizer = torch.optim.SGD(groups, lr=0.0, momentum=self.momentum, nesterov=self.nesterov)
        for trained in parameters if self.momentum else ():
            optimizer.state[trained.parameter]["momentum_buffer"] = torch.zeros_like(trained.parameter)
        return [optimizer]


@dataclass(frozen=True)
class Muon:
    """Muon for hidden matrices (see muon.py), AdamW for all other parameters, both with the learner's rate."""

    momentum: float = 0.95
    """How much of the mean gradient is kept."""
    nesterov: bool = True
    """Whether the gradient is mixed into the momentum once more before it is orthogonalised."""
    iterations: int = 5
    """Of the orthogonalisation."""
    scaling: Scaling = "adamw"
    """adamw: updates of 0.2 sqrt(max(rows, columns)), which suit rates and weight decay that were found with AdamW;
    original: of sqrt(max(1, rows / columns)), which needs larger rates, such as 0.02."""
    adamw: Sequence[str] = ()
    """Patterns of further parameters that AdamW trains, such as the head of a classifier."""
    beta1: float | None = None
    """AdamW's, as are the next two; None: as in the configuration."""
    beta2: float | None = None
    """AdamW's decay of the square."""
    eps: float | None = None
    """AdamW's epsilon."""
    skips_on_device: ClassVar[bool] = False
    is_lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_adam(self)
        _check_fraction("Muon's momentum", self.momentum)
        if self.iterations < 1:
            raise UserError(f"Muon needs at least one iteration of its orthogonalisation, not {self.iterations}")
        if self.scaling not in ("adamw", "original"):
            raise UserError(f"Muon's scaling is 'adamw' or 'original', not {self.scaling!r}")

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        """Muon for the hidden matrices, AdamW for the rest where there is one."""
        names, hidden = parameter_names(module), hidden_matrices(module)
        for pattern in self.adamw:
            check_matches(pattern, names.values())
        excluded = {number for number, own in names.items() if any(matches(pattern, own) for pattern in self.adamw)}
        mine = [trained for trained in parameters if id(trained.parameter) in hidden - excluded]
        rest = [trained for trained in parameters if id(trained.parameter) not in hidden - excluded]
        if not mine:
            raise UserError("Muon is for hidden matrices, but the network has none to train; use AdamW")
        muon = MuonOptimizer(
            torch_groups(mine),
            momentum=self.momentum,
            nesterov=self.nesterov,
            iterations=self.iterations,
            scaling=self.scaling,
        )
        return [muon, *(AdamW(self.beta1, self.beta2, self.eps).make(module, rest, run) if rest else [])]


@dataclass(frozen=True)
class AdamW8bit:
    """torchao's AdamW, whose moments take 8 bits an element; small parameters have moments in float32."""

    beta1: float | None = None
    """Decay of the mean; None: the setting `beta1`."""
    beta2: float | None = None
    """Decay of the square; None: the setting `beta2`."""
    eps: float | None = None
    """Added to the root of the square; None: the setting `adam_eps`."""
    skips_on_device: ClassVar[bool] = False
    is_lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_adam(self)

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        """One for all parameters, whose state is made now, as its first step would make it."""
        try:
            from torchao.optim import AdamW8bit as TorchaoAdamW8bit
        except ImportError:
            raise UserError('AdamW8bit needs torchao: pip install "samestep[torchao]"') from None
        if run.is_sharded:
            raise UserError(
                "AdamW8bit has one scale for 256 neighbouring elements, and with distributed.strategy=fsdp those would "
                "depend on the number of ranks; use ddp, or another optimizer"
            )
        betas, eps = _given(self, run)
        optimizer = TorchaoAdamW8bit(torch_groups(parameters), lr=0.0, betas=betas, eps=eps)
        for trained in parameters:
            optimizer.state[trained.parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": optimizer._new_buffer(trained.parameter.detach(), True),
                "exp_avg_sq": optimizer._new_buffer(trained.parameter.detach(), False),
            }
        return [optimizer]


@dataclass(frozen=True)
class CustomOptimizer:
    """What a function of the recipe makes."""

    factory: Factory
    skips_on_device: ClassVar[bool] = False
    is_lazy: ClassVar[bool] = True

    def make(self, module: nn.Module, parameters: Sequence[Trainable], run: RunSettings) -> list[torch.optim.Optimizer]:
        """The function's optimizer, once it is known to fit."""
        try:
            made = self.factory(torch_groups(parameters))
        except (TypeError, ValueError) as error:
            raise UserError(f"the learner's optimizer cannot be made: {error}") from error
        if not isinstance(made, torch.optim.Optimizer):
            raise UserError(f"the learner's optimizer must be a torch.optim.Optimizer, but is a {type(made).__name__}")
        closure = inspect.signature(made.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UserError(
                f"{type(made).__name__} evaluates the loss several times in a step, which a learner cannot do; use an "
                "optimizer that steps without a closure"
            )
        wanted = {id(trained.parameter) for trained in parameters}
        if {id(parameter) for group in made.param_groups for parameter in group["params"]} != wanted:
            raise UserError(
                f"{type(made).__name__} does not have the learner's parameters; give it the groups that the function "
                "is called with"
            )
        return [made]


def as_choice(optimizer: OptimizerChoice | Factory) -> OptimizerChoice:
    """The optimizer that a recipe gave."""
    if isinstance(optimizer, AdamW | SGD | Muon | AdamW8bit | CustomOptimizer):
        return optimizer
    is_other_class = isinstance(optimizer, type) and not issubclass(optimizer, torch.optim.Optimizer)
    if is_other_class or not callable(optimizer):
        raise UserError(
            f"optimizer={optimizer!r} is no optimizer; give AdamW(), SGD(), Muon(), AdamW8bit(), or a function such as "
            "lambda params: torch.optim.Adagrad(params)"
        )
    return CustomOptimizer(optimizer)


def named_choice(name: str, momentum: float | None) -> OptimizerChoice:
    if name == "sgd":
        return SGD() if momentum is None else SGD(momentum)
    if name == "muon":
        return Muon() if momentum is None else Muon(momentum)
    return AdamW() if name == "adamw" else AdamW8bit()


def _given(choice: AdamW | AdamW8bit, run: RunSettings) -> tuple[tuple[float, float], float]:
    """The betas and epsilon; what is not given comes from the configuration."""
    beta1 = run.betas[0] if choice.beta1 is None else choice.beta1
    beta2 = run.betas[1] if choice.beta2 is None else choice.beta2
    return (beta1, beta2), run.eps if choice.eps is None else choice.eps


def _check_adam(choice: AdamW | Muon | AdamW8bit) -> None:
    for name in ("beta1", "beta2"):
        value = getattr(choice, name)
        if value is not None:
            _check_fraction(name, value)
    if choice.eps is not None and not choice.eps >= 0:
        raise UserError(f"eps must not be negative, but is {choice.eps}")


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{name} must be at least 0 and below 1, but is {value}")
