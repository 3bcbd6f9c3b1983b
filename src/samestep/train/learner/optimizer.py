"""The optimizer of a learner: clipping, its step, its state in a checkpoint; and the loss scale of fp16."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.parallel.wrap import distribute_like, local, total_norm
from samestep.train.learner.optimizers.choices import (
    AdamW,
    AdamW8bit,
    CustomOptimizer,
    Factory,
    OptimizerChoice,
    RunSettings,
    as_choice,
    named_choice,
)
from samestep.train.learner.optimizers.groups import Group, trained_parameters
from samestep.train.learner.optimizers.saved_state import OptimizerState
from samestep.train.record.config import Config


@dataclass(frozen=True)
class OptimSettings:
    """What an optimizer needs to know."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float | None
    """None: what the optimizer has by itself."""
    clip: float
    """Largest gradient norm; 0: no clipping."""
    clip_value: float = 0.0
    """Largest absolute value of an element of a gradient; 0: no clipping."""
    optimizer: OptimizerChoice = field(default_factory=AdamW)
    groups: Mapping[str, Group] = field(default_factory=dict)
    """By patterns of parameter names."""
    is_sharded: bool = False
    """Whether the ranks share the parameters among them."""

    def __post_init__(self) -> None:
        for name in ("weight_decay", "clip", "clip_value"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{name} must not be negative, but is {value}")

    @classmethod
    def of(cls, config: Config) -> "OptimSettings":
        return cls(
            (config.beta1, config.beta2),
            config.adam_eps,
            config.weight_decay,
            config.clip,
            config.clip_value,
            named_choice(config.optimizer, config.momentum),
            is_sharded=config.distributed.strategy == "fsdp",
        )

    def given(
        self,
        optimizer: OptimizerChoice | Factory | None,
        groups: Mapping[str, Group] | None,
        weight_decay: float | None,
        clip: float | None,
        clip_value: float | None,
    ) -> "OptimSettings":
        """With what a recipe gives for one learner. The weight decay of a recipe's own optimizer is its own, unless the
        learner is given one."""
        choice = self.optimizer if optimizer is None else as_choice(optimizer)
        decay = None if isinstance(choice, CustomOptimizer) else self.weight_decay
        return replace(
            self,
            optimizer=choice,
            groups=groups or {},
            weight_decay=decay if weight_decay is None else weight_decay,
            clip=self.clip if clip is None else clip,
            clip_value=self.clip_value if clip_value is None else clip_value,
        )


class LearnerOptimizer:
    """The optimizer of one module, which may be made of several of torch's."""

    def __init__(self, module: nn.Module, settings: OptimSettings) -> None:
        self._settings = settings
        self._parameters = trained_parameters(module, settings.groups, settings.weight_decay)
        choice, run = settings.optimizer, RunSettings(settings.betas, settings.eps, settings.is_sharded)
        self._optimizers = choice.make(module, self._parameters, run)
        self.inner = self._optimizers[0]
        """The only one, if it is AdamW."""
        self.compiles = isinstance(choice, AdamW8bit)
        """Whether the next step compiles, which takes long."""
        self._state = OptimizerState(self._optimizers, self._parameters, choice.is_lazy)
        self._must_check_state = choice.is_lazy
        factors = {id(trained.parameter): trained.group.rate for trained in self._parameters}
        self._groups = [
            (group, factors[id(group["params"][0])]) for torchs in self._optimizers for group in torchs.param_groups
        ]
        self._windowed = [
            trained for trained in self._parameters if trained.group.train_from or trained.group.train_until is not None
        ]

    def drop_untrained(self, step: int) -> bool:
        """Drop the gradients of parameters that do not move in this step, so that they count for nothing and no
        optimizer touches them; returns whether there are such."""
        idle = [trained for trained in self._windowed if not trained.group.is_trained_at(step)]
        for trained in idle:
            trained.parameter.grad = None
        return bool(idle)

    def step(
        self, gradients: Sequence[Tensor], norm: Tensor, *, rate: float, bad: Tensor, loss_scale: Tensor | None = None
    ) -> None:
        """One step with clipped gradients, whose global norm is `norm`; without any effect where `bad` is one.

        The gradients come multiplied by `loss_scale`. With AdamW nothing waits for the device: the fused optimizer
        divides them by `grad_scale`, and does nothing where `found_inf` is one. Others would write what is not finite
        into their state, so they wait for `bad`, which is the same on all ranks because the norm is.
        """
        waits = not self._settings.optimizer.skips_on_device
        if not gradients or (waits and bad.item()):
            return
        divisor = self._divisor(gradients, norm, loss_scale)
        if waits or norm.dtype == torch.float64:  # the fused divisor is float32, too coarse for a proof in float64
            torch._foreach_div_([local(gradient) for gradient in gradients], divisor)
        else:
            self.inner.grad_scale = divisor.float()  # type: ignore[attr-defined]
        if not waits:
            self.inner.found_inf = bad  # type: ignore[attr-defined]
        for group, factor in self._groups:
            _set_rate(group, rate * factor)
        for optimizer in self._optimizers:
            optimizer.step()
        self.compiles = False
        if self._must_check_state:  # now, rather than hours later when it is to be saved
            self._must_check_state = False
            self._state.state_dict()

    def _divisor(self, gradients: Sequence[Tensor], norm: Tensor, loss_scale: Tensor | None) -> Tensor:
        """By what the gradients are to be divided; elements that are too large are clipped here, before the norm."""
        clip, largest = self._settings.clip, self._settings.clip_value
        if largest:
            parts = [local(gradient) for gradient in gradients]
            if loss_scale is not None:
                torch._foreach_div_(parts, loss_scale)
                loss_scale = None
            torch._foreach_clamp_max_(parts, largest)
            torch._foreach_clamp_min_(parts, -largest)
            norm = total_norm(gradients) if clip else norm
        # As in torch's clip_grad_norm_.
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        return divisor if loss_scale is None else divisor * loss_scale

    @property
    def memory_to_come(self) -> int:
        """Bytes of state that the first step makes, where it does: as much as AdamW's, since it is not known."""
        if not self._settings.optimizer.is_lazy or any(optimizer.state for optimizer in self._optimizers):
            return 0
        return 2 * sum(local(trained.parameter).nbytes for trained in self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts; the groups' settings come from the configuration, not from a checkpoint."""
        return self._state.state_dict()

    def prepare_load(self, saved: Mapping[str, Any]) -> None:
        """Have the tensors that a saved state has; `saved` is its JSON part."""
        self._state.prepare_load(saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._state.load_state_dict(state)

    def load_torch_state(self, state: Mapping[str, Any]) -> None:
        """Load the moments of torch's AdamW over the same parameters in the module's order, in whatever groups."""
        if not isinstance(self._settings.optimizer, AdamW):
            raise ValueError(f"it is AdamW's, but the optimizer is {type(self._settings.optimizer).__name__}")
        theirs = [number for group in state["param_groups"] for number in group["params"]]
        ours = [trained.parameter for trained in self._parameters]
        assert len(theirs) == len(ours), f"it is for {len(theirs)} parameters, but the model has {len(ours)}"
        for number, parameter in zip(sorted(theirs), ours):
            moments = state["state"].get(number, {})
            for name in ("exp_avg", "exp_avg_sq"):
                assert moments[name].shape == parameter.shape, f"moment {number} is {tuple(moments[name].shape)}"
            own = self.inner.state[parameter]
            own["step"] = torch.as_tensor(float(moments["step"]), device=parameter.device)
            own |= {name: distribute_like(moments[name], parameter) for name in ("exp_avg", "exp_avg_sq")}


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """Some optimizers keep the rate in a tensor, so that compiled code need not be compiled again for each rate."""
    if isinstance(group.get("lr"), Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class LossScale:
    """fp16's loss scale, kept on the device: halved by an overflow, doubled after `growth_interval` good steps.

    An overflow shows in the gradient norm, which is global, so all ranks agree under sharding too.
    """

    def __init__(self, device: torch.device, start: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.scale = torch.full((), start, dtype=torch.float32, device=device)
        self._good_steps = torch.zeros((), dtype=torch.float32, device=device)
        self._growth_interval = growth_interval

    def update(self, bad: Tensor) -> None:
        """Count one step; `bad` is 1 where it overflowed."""
        self._good_steps.add_(1).mul_(1 - bad)
        grow = self._good_steps >= self._growth_interval
        self.scale.mul_(torch.where(bad > 0, 0.5, torch.where(grow, 2.0, 1.0)))
        self._good_steps.mul_(~grow)

    def state_dict(self) -> dict[str, Tensor]:
        """The scale, and how many good steps there were since it changed."""
        return {"scale": self.scale, "quiet": self._good_steps}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved scale."""
        self.scale.copy_(state["scale"])
        self._good_steps.copy_(state["quiet"])
