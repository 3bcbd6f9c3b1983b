"""The gan recipe with a rank that is killed inside of a step, while it writes; once, if $KILL_MARK names a file."""

import os
import signal
from pathlib import Path
from typing import Any

from samestep.recipes.gan import recipe as recipe
from samestep.recipes.gan.rollout import Rollouts

make = Rollouts.make


def make_or_die(self: Rollouts, batch: Any, step: int, turn: int, opponents: Any) -> Any:
    rows = make(self, batch, step, turn, opponents)
    mark = os.environ.get("KILL_MARK")
    if mark and step == 2 and not Path(mark).exists() and self.bench.world.rank == 1:
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return rows


Rollouts.make = make_or_die  # type: ignore[method-assign]
