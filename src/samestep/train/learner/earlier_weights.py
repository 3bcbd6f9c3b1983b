"""Weights that a learner had at earlier steps, a bounded number of them: opponents, or teachers, from its own past.

earlier = EarlierWeights(learner, keep=3)
earlier.take(tick.step)                      # the oldest make room
with earlier.in_use(number): ...             # the learner's module holds them meanwhile

They are in checkpoints, so a resumed run has the same ones; files of their own would have to outlive every checkpoint
that names them. Each is a copy of the learner's weights in the memory of the device (of adapters alone, where it has
some), sharded as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samestep.core.errors import UserError
from samestep.parallel.wrap import local
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.ema import exchanged
from samestep.train.learner.learner import Learner

_NONE = -1


class EarlierWeights:
    """Copies of one learner's weights, with the step that each is from and its hash; checkpoint state."""

    def __init__(self, learner: Learner, keep: int) -> None:
        """At most `keep` copies, the newest ones; memory for all of them is taken at once."""
        if keep < 1:
            raise UserError(f"Keep at least 1 earlier state of learner {learner.name!r}; keep is {keep}.")
        self._learner, self._live = learner, learner.saved_parameters()
        # All at once, since a checkpoint is loaded into what is there.
        self._copies = [{name: weight.detach().clone() for name, weight in self._live.items()} for _ in range(keep)]
        self.steps, self.hashes = [_NONE] * keep, [""] * keep
        """Of each copy, the step that it is from, and the hash of its content."""
        learner.kept_weights.append(("a copy of the earlier weights", self))

    def __len__(self) -> int:
        """How many there are so far."""
        return sum(step != _NONE for step in self.steps)

    @torch.no_grad()
    def take(self, step: int) -> None:
        """Copy the weights as they are now, to a free place or that of the oldest. Collective if sharded."""
        if self._learner.size_trial is not None:
            return
        place = self.steps.index(min(self.steps))
        for name, copy in self._copies[place].items():
            local(copy).copy_(local(self._live[name]))
        self.steps[place], self.hashes[place] = step, content_hash(self._copies[place])

    @contextmanager
    def in_use(self, number: int) -> Iterator[None]:
        """The learner's module with the weights of a copy; afterwards with its own again, bit for bit."""
        with exchanged(self._learner, self._live, self._copies[number]):
            yield

    def state_dict(self) -> dict[str, Any]:
        """The copies, and where they are from."""
        copies = {str(place): dict(copy) for place, copy in enumerate(self._copies)}
        return {"copies": copies, "steps": list(self.steps), "hashes": list(self.hashes)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved ones, if they are what was kept. Collective if sharded."""
        for place, copy in enumerate(self._copies):
            for name, weight in copy.items():
                weight.copy_(state["copies"][str(place)][name])
        self.steps, self.hashes = list(state["steps"]), list(state["hashes"])
        for step, copy, saved in zip(self.steps, self._copies, self.hashes, strict=True):
            if step != _NONE and content_hash(copy) != saved:
                raise UserError(
                    f"Resume from an earlier checkpoint: the weights of learner {self._learner.name!r} from step "
                    f"{step} are not those that were kept, since their hash differs."
                )
