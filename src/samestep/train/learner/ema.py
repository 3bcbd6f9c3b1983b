"""An exponential moving average of a learner's weights: what validation, sampling and export use when it is on.

average = Average(learner, decay=0.999)
learner.update(...); average.update()      # once a step, on the device, nobody waits
with average.in_use(): ...                 # the learner's module holds the averaged weights meanwhile
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samestep.core.errors import UserError
from samestep.parallel.wrap import local
from samestep.train.learner.learner import Learner

AVERAGE = "average"
"""Where a checkpoint keeps the averaged weights, if the run has them; they lie there as a learner's own do."""
_HASTE = 10
"""The first steps forget faster, so that the fresh weights of the beginning do not linger in a short run."""


class Average:
    """The running average of one learner's parameters, in their own type and sharded as they are; checkpoint state."""

    def __init__(self, learner: Learner, decay: float) -> None:
        if not 0 < decay < 1:
            raise UserError(f"Set the decay of averaged weights above 0 and below 1, such as 0.999; it is {decay}.")
        self._learner, self._decay = learner, decay
        with learner.inference() as module:
            self._live = dict(module.named_parameters())
        self._held = {name: parameter.detach().clone() for name, parameter in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the weights after the learner's newest update."""
        done = self._learner.updates
        decay = min(self._decay, (1 + done) / (_HASTE + done))
        held = [local(tensor) for tensor in self._held.values()]
        torch._foreach_lerp_(held, [local(tensor) for tensor in self._live.values()], 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The learner's module with the averaged weights; afterwards with its own again, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """One tensor at a time, so that no second copy of the model is needed."""
        for name, held in self._held.items():
            own = local(self._live[name]).clone()
            local(self._live[name]).copy_(local(held))
            local(held).copy_(own)

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights, under the names that the learner's own have."""
        return {"model": dict(self._held)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved ones."""
        for name, tensor in self._held.items():
            tensor.copy_(state["model"][name])
