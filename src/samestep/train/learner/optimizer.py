"""AdamW with decay groups, the loss scale of fp16, and the learning rate as a function of the step: nothing to save."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.train.config import Config

_WITHOUT_DECAY = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)  # norms may be over several dimensions


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


def adamw(module: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """Fused AdamW over the trainable parameters; weight decay on none of norms, biases and embeddings."""
    spared = _spared(module)
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if id(p) not in spared], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if id(p) in spared], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)
    for parameter in trainable:  # made now: torch makes a missing state by a step that counts, when it is merely saved
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _spared(module: nn.Module) -> set[int]:
    """Parameters without decay, by identity: one that is shared with an embedding counts as an embedding."""
    return {
        id(parameter)
        for part in module.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.ndim < 2 or name.endswith("bias") or isinstance(part, _WITHOUT_DECAY)
    }


class LossScale:
    """fp16's loss scale, kept on the device: halved by a step that overflowed, doubled after a quiet stretch.

    The overflow itself is seen in the gradient norm, which is global, so all ranks agree under sharding too.
    """

    def __init__(self, device: torch.device, start: float = 2.0**16, stretch: int = 2000) -> None:
        self.scale = torch.full((), start, dtype=torch.float32, device=device)
        self._quiet = torch.zeros((), dtype=torch.float32, device=device)
        self._stretch = stretch

    def update(self, bad: Tensor) -> None:
        """Count one step in."""
        self._quiet.add_(1).mul_(1 - bad)
        grow = self._quiet >= self._stretch
        self.scale.mul_(torch.where(bad > 0, 0.5, torch.where(grow, 2.0, 1.0)))
        self._quiet.mul_(~grow)

    def state_dict(self) -> dict[str, Tensor]:
        """Scale and the length of the quiet stretch."""
        return {"scale": self.scale, "quiet": self._quiet}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a saved scale."""
        self.scale.copy_(state["scale"])
        self._quiet.copy_(state["quiet"])


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then a course from the peak down to `floor` times it."""

    peak: float
    steps: int
    warmup: int = 0
    kind: str = "constant"
    floor: float = 0.0
    decay: int = 0
    """Steps of the final decay (wsd only)."""

    def __call__(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        after = self.warmup
        if self.kind == "wsd":
            after = max(self.warmup, self.steps - self.decay)
        done = min(1.0, max(0.0, (step - after) / max(1, self.steps - after)))
        return self.peak * (self.floor + (1 - self.floor) * self._course(done))

    def _course(self, done: float) -> float:
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1.0 - done  # linear, and wsd's decay
