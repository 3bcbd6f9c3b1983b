"""AdamW with decay groups: its step, its state in a checkpoint, and the loss scale of fp16."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from samestep.parallel.wrap import distribute_like, local
from samestep.train.config import Config

_WITHOUT_DECAY = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)  # norms may be over several dimensions
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class OptimSettings:
    """What an optimizer needs to know."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float

    @classmethod
    def of(cls, config: Config) -> "OptimSettings":
        """As the configuration says."""
        return cls((config.beta1, config.beta2), config.adam_eps, config.weight_decay, config.clip)


class FusedAdamW:
    """The optimizer of one module: its step, and its state in a checkpoint."""

    def __init__(self, module: nn.Module, settings: OptimSettings) -> None:
        self._module, self._clip = module, settings.clip
        self.inner = adamw(module, settings)

    def step(
        self, gradients: Sequence[Tensor], norm: Tensor, *, rate: float, bad: Tensor, loss_scale: Tensor | None = None
    ) -> None:
        """One step with gradients that are clipped by their global `norm`; without any effect where `bad` is one.

        The gradients come multiplied by `loss_scale`. Nothing waits for the device: the fused optimizer divides them by
        `grad_scale`, and does nothing where `found_inf` is one.
        """
        # As in torch's clip_grad_norm_.
        divisor = ((norm + 1e-6) / self._clip).clamp(min=1.0) if self._clip else torch.ones_like(norm)
        if loss_scale is not None:
            divisor = divisor * loss_scale
        if norm.dtype == torch.float64:  # the fused divisor is float32, too coarse for a proof in float64
            torch._foreach_div_([local(gradient) for gradient in gradients], divisor)
        else:
            self.inner.grad_scale = divisor.float()  # type: ignore[attr-defined]
        self.inner.found_inf = bad  # type: ignore[attr-defined]
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts; the groups' settings come from the configuration, not from a checkpoint."""
        state = get_optimizer_state_dict(self._module, self.inner, options=_FLAT)
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        current = get_optimizer_state_dict(self._module, self.inner, options=_FLAT)
        set_optimizer_state_dict(self._module, self.inner, {**current, **state}, options=_FLAT)

    def load_torch_state(self, state: Mapping[str, Any]) -> None:
        """Load the moments of a torch optimizer over the same parameters in the module's order, in whatever groups."""
        theirs = [number for group in state["param_groups"] for number in group["params"]]
        ours = [p for p in self._module.parameters() if p.requires_grad]
        assert len(theirs) == len(ours), f"it is for {len(theirs)} parameters, but the model has {len(ours)}"
        for number, parameter in zip(sorted(theirs), ours):
            moments = state["state"].get(number, {})
            for name in ("exp_avg", "exp_avg_sq"):
                assert moments[name].shape == parameter.shape, f"moment {number} is {tuple(moments[name].shape)}"
            own = self.inner.state[parameter]
            own["step"] = torch.as_tensor(float(moments["step"]), device=parameter.device)
            own |= {name: distribute_like(moments[name], parameter) for name in ("exp_avg", "exp_avg_sq")}


def adamw(module: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """Fused AdamW over the trainable parameters; no weight decay on norms, biases and embeddings."""
    undecayed = _undecayed(module)
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if id(p) not in undecayed], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if id(p) in undecayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)
    for parameter in trainable:  # made now: else torch makes it with a counted step when the state is saved
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _undecayed(module: nn.Module) -> set[int]:
    """Parameters without decay, by identity: one that is shared with an embedding counts as an embedding."""
    return {
        id(parameter)
        for part in module.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.ndim < 2 or name.endswith("bias") or isinstance(part, _WITHOUT_DECAY)
    }


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
