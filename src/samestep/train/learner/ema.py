"""An exponential moving average of a learner's weights: what validation, sampling and export use when it is on.

average = Average(learner, decay=0.999)
learner.update(...); average.update()      # once a step, on the device, without waiting
with average.in_use(): ...                 # the learner's module holds the averaged weights meanwhile
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.arguments import described
from samestep.core.errors import UserError
from samestep.parallel.wrap import local
from samestep.train.learner.learner import Learner

AVERAGE = "average"
"""The name of the averaged weights in a checkpoint, if the run has them; they are stored as a learner's own are."""
_WARMUP = 10
"""In the first steps the decay is smaller, so that the initial weights do not dominate the average of a short run."""


class Average:
    """The running average of one learner's parameters, in their own type and sharded as they are; checkpoint state."""

    def __init__(self, learner: Learner, decay: float) -> None:
        """An update keeps the share `decay` of the average, such as 0.999; it begins with the learner's first
        weights."""
        if not isinstance(learner, Learner):
            raise UserError(
                "averaged weights are those of a learner; give Average what bench.learner(network) made, not "
                f"{described(learner)}"
            )
        if not 0 < decay < 1:
            raise UserError(f"Set the decay of averaged weights above 0 and below 1, such as 0.999; it is {decay}.")
        self._learner, self._decay = learner, decay
        self._live = learner.saved_parameters()
        self._averaged = {name: parameter.detach().clone() for name, parameter in self._live.items()}
        learner.kept_weights.append(("the average", self))

    @property
    def learner(self) -> str:
        """The name of the learner whose weights are averaged."""
        return self._learner.name

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the weights after the learner's newest update."""
        if self._learner.size_trial is not None:
            return
        done = self._learner.updates
        decay = min(self._decay, (1 + done) / (_WARMUP + done))
        averaged = [local(tensor) for tensor in self._averaged.values()]
        torch._foreach_lerp_(averaged, [local(tensor) for tensor in self._live.values()], 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The learner's module with the averaged weights; afterwards with its own again, bit for bit."""
        with exchanged(self._learner, self._live, self._averaged):
            yield

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights, under the names that the learner's own have."""
        return {"model": dict(self._averaged)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved ones."""
        for name, tensor in self._averaged.items():
            tensor.copy_(state["model"][name])


@contextmanager
def exchanged(learner: Learner, live: Mapping[str, nn.Parameter], stored: Mapping[str, Tensor]) -> Iterator[None]:
    """Other weights of a learner in the place of its own, `live`, which are kept in theirs meanwhile."""
    now = dict(learner.module.named_parameters())
    if any(now[name].dtype != weight.dtype for name, weight in live.items() if local(weight) is weight):
        raise UserError(
            f"put other weights of learner {learner.name!r} in use before learner.inference(), not inside of it: in "
            "mixed precision it computes with copies of the weights that it found"
        )
    _swap(live, stored)
    try:
        yield
    finally:
        _swap(live, stored)


@torch.no_grad()
def _swap(live: Mapping[str, nn.Parameter], stored: Mapping[str, Tensor]) -> None:
    """One tensor at a time, so that no second copy of the model is needed."""
    for name, weight in stored.items():
        own = local(live[name]).clone()
        local(live[name]).copy_(local(weight))
        local(weight).copy_(own)
