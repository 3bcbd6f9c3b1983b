"""What the state was when a step began, so that a stop inside the step can be saved as if it had not begun."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.checkpoint.state import RankStateful, Stateful, split_state
from samestep.core.json_files import Json
from samestep.parallel.wrap import local
from samestep.train.logging.metrics import Metrics
from samestep.train.record.progress import Tick
from samestep.train.record.stop import Stop
from samestep.world.seeding import RandomState
from samestep.world.world import World


@dataclass
class StepStart:
    """Notes the state before each step of a task that checks for a stop inside; it must be the last hook.

    Tensors are not copied: it is enough to see that nothing has written to them since. Only the random generators,
    which a rollout may use, are put back.
    """

    stop: Stop
    state: Mapping[str, Stateful]
    random: RandomState
    world: World
    _before: tuple[object, Json] | None = None
    """None until a step has checked for a stop. Nothing is lost then: the launch has just begun."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """The state now is that of the next step's beginning."""
        if self.stop.is_checked_inside:
            self._before = self._facts(), self.random.rank_state()

    def restore(self) -> bool:
        """Put back the state from before the step, on all ranks; returns whether that was possible."""
        is_same = self._before is not None and self._facts() == self._before[0]
        if not all(self.world.gather(is_same)):
            return False
        assert self._before is not None
        self.random.restore(self._before[1])
        return True

    def _facts(self) -> dict[str, object]:
        """What changes if anything in the state changes, without reading a tensor."""
        return {name: _facts_of(part) for name, part in self.state.items() if part is not self.random}


def _facts_of(part: Stateful) -> Any:
    plain, tensors = split_state(part.state_dict())
    written = {name: _Written(local(tensor)) for name, tensor in tensors.items()}
    own = part.rank_state() if isinstance(part, RankStateful) else None
    return json.dumps([plain, own], sort_keys=True), written


class _Written:
    """Which memory a tensor is in, and how often it was written to. It keeps the tensor, so that no other one can get
    the same memory; a copy that a part makes of its state for each save counts as changed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Written) and self._tensor.data_ptr() == other._tensor.data_ptr()
        return same and self._version == other._version  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]
