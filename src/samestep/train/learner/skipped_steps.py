"""Steps that train nothing, because a gradient is not finite or because no row counts: they are said and counted.

A run ends when too many steps in a row are not finite.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import Diverged
from samestep.core.json_files import Json
from samestep.data.feed import MicroBatches
from samestep.world.world import World

logger = logging.getLogger(__name__)
SAY_SECONDS = 60.0
"""Skipped steps of a learner are said at most this often."""
_NAMED = 8
"""Rows that a sentence names."""


@dataclass(frozen=True)
class _Pending:
    """A step whose outcome is still being copied off the device."""

    outcome: Tensor | Sequence[float]
    """How many bad steps in a row there are with it, and whether it was bad itself."""
    event: torch.cuda.Event | None
    step: int
    ids: np.ndarray
    spans: Sequence[tuple[int, int]]
    rows: Sequence[Mapping[str, Tensor]]
    """By micro-batch, the terms that are trained."""

    def wait(self) -> tuple[int, bool]:
        if self.event is not None:
            self.event.synchronize()
        in_row, bad = self.outcome.tolist() if isinstance(self.outcome, Tensor) else self.outcome
        return int(in_row), bool(bad)

    def bad_rows(self) -> list[list[int]]:
        """This rank's rows with a value that is not finite, as (epoch, index). It waits for the device, so it is asked
        only of a step that was skipped."""
        found: list[list[int]] = []
        for (start, stop), terms in zip(self.spans, self.rows):
            wrong = torch.stack([~torch.isfinite(values[: stop - start]) for values in terms.values()]).any(0)
            found += self.ids[start:stop][wrong.cpu().numpy()].tolist()
        return found


class SkippedSteps:
    """Whether a step was bad is copied off the device without waiting and read a step later, on all ranks alike. What
    was counted is checkpoint state."""

    def __init__(self, world: World, name: str, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._world, self._name, self._limit, self._clock = world, name, limit, clock
        self._bad_in_row = torch.zeros((), dtype=torch.float32, device=world.device)
        self._pending: _Pending | None = None
        self._said, self._unsaid = -SAY_SECONDS, 0
        self.not_finite = 0
        """Steps whose gradient was not finite. An overflow that only lowers fp16's loss scale is none."""
        self.bad_rows = 0
        """Rows in them whose loss was not finite."""
        self.uncounted = 0
        """Steps without weight: `count` gave 0 to all rows."""

    def add(
        self,
        step: int,
        bad: Tensor,
        counted: Tensor,
        micro_batches: MicroBatches,
        rows: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Count an update in step `step`; check the one before. `counted`: whether a bad one counts towards the limit.
        `rows` are the terms that are trained, by micro-batch."""
        self._bad_in_row.add_(1).mul_(counted)
        self.check()
        outcome, event = torch.stack([self._bad_in_row, bad]), None
        if outcome.device.type == "cuda":
            host = torch.empty(2, dtype=torch.float32, pin_memory=True)
            host.copy_(outcome, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            outcome = host
        detached = [{term: values.detach() for term, values in terms.items()} for terms in rows]
        self._pending = _Pending(outcome, event, step, micro_batches.ids, micro_batches.spans, detached)

    def add_uncounted(self, step: int, rows: int, terms: Collection[str]) -> None:
        """Count an update in which none of `rows` rows weighs anything in the terms that are trained."""
        self.uncounted += 1
        listed = ", ".join(map(repr, terms))
        self._say(f"step {step + 1} trained nothing: all {rows} rows of its batch have the weight 0 in {listed}")

    def check(self) -> None:
        """Read the outcome that is still pending: say and count a step that was skipped, and raise when there were too
        many in a row. Collective where it was."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        in_row, bad = pending.wait()
        if not bad:
            return
        own = pending.bad_rows() if self._world.dp_counted else []
        rows = [row for found in self._world.gather(own) for row in found]
        if not in_row and not rows:
            return  # the loss scale was too large for this gradient, and falls
        self.not_finite += 1
        self.bad_rows += len(rows)
        if in_row >= self._limit:
            named = _named(rows or pending.ids.tolist())
            raise Diverged(
                f"the gradient of {self._name!r} was not finite for {in_row} steps in a row, the last at step "
                f"{pending.step + 1} with {named}; lower the learning rate or look at these rows"
            )
        if rows:
            why = f"the loss of {_named(rows)} was not finite"
        else:
            why = (
                "the loss of every row was finite, but not its gradient, such as that of sqrt(0); its batch was "
                f"{_named(pending.ids.tolist())}"
            )
        self._say(f"step {pending.step + 1} was skipped, with all {len(pending.ids)} rows of its batch: {why}")

    @property
    def count(self) -> int:
        """Steps that trained nothing."""
        return self.not_finite + self.uncounted

    def summary(self) -> str:
        """What the end of a stage says about them; empty if there was none."""
        parts = []
        if self.not_finite:
            rows = f" ({self.bad_rows} rows had a loss that was not finite)" if self.bad_rows else ""
            parts.append(f"skipped {self.not_finite} steps whose gradient was not finite{rows}")
        if self.uncounted:
            parts.append(f"trained nothing in {self.uncounted} steps, whose rows all had the weight 0")
        return f"learner {self._name!r} {', and '.join(parts)}" if parts else ""

    def _say(self, sentence: str) -> None:
        """On rank 0, at most once a minute."""
        now = self._clock()
        if now - self._said < SAY_SECONDS:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more steps since this was last said)" if self._unsaid else ""
        self._said, self._unsaid = now, 0
        if self._world.is_main:
            logger.warning("learner %r: %s%s", self._name, sentence, more)

    def state_dict(self) -> dict[str, Any]:
        """How many bad steps in a row there were, and all counts."""
        counts = {"not_finite": self.not_finite, "bad_rows": self.bad_rows, "uncounted": self.uncounted}
        return {"in_row": self._bad_in_row, **counts}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Continue counting."""
        self._bad_in_row.copy_(state["in_row"])
        self.not_finite, self.bad_rows, self.uncounted = state["not_finite"], state["bad_rows"], state["uncounted"]
        self._pending = None


def _named(ids: Sequence[Sequence[int]]) -> str:
    """`2 rows: 17 (epoch 0), 5 (epoch 0)`."""
    listed = ", ".join(f"{index} (epoch {epoch})" for epoch, index in ids[:_NAMED])
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"row {listed}" if len(ids) == 1 else f"{len(ids)} rows: {listed}{more}"
