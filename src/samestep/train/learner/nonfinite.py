"""Counts steps whose gradient is not finite, and ends the run when there are too many in a row."""

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import Diverged
from samestep.data.feed import MicroBatches


class FiniteGuard:
    """Whether a step was bad is copied off the device without waiting and read a step later, on all ranks alike."""

    def __init__(self, device: torch.device, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._bad_in_row = torch.zeros((), dtype=torch.float32, device=device)
        self._pending: tuple[Tensor | float, torch.cuda.Event | None, int, np.ndarray] | None = None

    def add(self, bad: Tensor, micro_batches: MicroBatches) -> None:
        """Count this step; check the one before."""
        self._bad_in_row.add_(1).mul_(bad)
        self.check()
        if self._bad_in_row.device.type == "cuda":
            host = torch.empty((), dtype=torch.float32, pin_memory=True)
            host.copy_(self._bad_in_row, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = (host, event, micro_batches.step, micro_batches.ids)
        else:
            self._pending = (float(self._bad_in_row), None, micro_batches.step, micro_batches.ids)

    def check(self) -> None:
        """Read the count that is still pending; raises when it has reached the limit."""
        if self._pending is None:
            return
        count, event, step, ids = self._pending
        self._pending = None
        if event is not None:
            event.synchronize()
        if count >= self._limit:
            named = ", ".join(f"{index} (epoch {epoch})" for epoch, index in ids[:8].tolist())
            more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
            raise Diverged(
                f"the gradient of {self._name!r} was not finite for {int(count)} steps in a row, the last at step "
                f"{step} with samples {named}{more}; lower the learning rate or look at these samples"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """How many bad steps in a row there were."""
        return {"in_row": self._bad_in_row}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue counting."""
        self._bad_in_row.copy_(state["in_row"])
        self._pending = None
