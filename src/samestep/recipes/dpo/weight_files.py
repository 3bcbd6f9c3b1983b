"""checkpoint_epoch_N.pt, best_model.pt and latest_model.pt: weights as other programs read them. Those of ProteinMPNN
can be opened as models, also the published ones.

They are in the run's folder beside the full state, which a run resumes from. Each is written completely or not at all.
"""

import math
from pathlib import Path
from typing import Any

from samestep import Bench, Metrics, Tick, UserError
from samestep.models.protein_mpnn_files import read_protein_mpnn
from samestep.recipes.dpo.config import DpoConfig, ModelConfig
from samestep.recipes.dpo.task import Preferences

BEST = "val/loss"


class WeightFiles:
    """A hook that writes them: after each epoch, after the last step, and where validation is better than before."""

    name = "weight_files"

    def __init__(self, task: Preferences, bench: Bench) -> None:
        self._task, self._bench = task, bench
        self._best = math.inf

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Write what is due. Every rank takes part, since weights may be sharded."""
        validated = self._bench.validation.get(BEST, math.inf)
        is_best = math.isfinite(validated) and validated < self._best
        names = [f"checkpoint_epoch_{tick.epoch + 1}.pt"] if tick.last_of_epoch else []
        names += ["best_model.pt"] if is_best else []
        names += ["latest_model.pt"] if tick.last_of_epoch or last else []
        self._best = validated if is_best else self._best
        if not names:
            return
        learner = self._task.learner
        weights = learner.merged_weights() if learner.has_adapters else learner.weights(full=True)
        if self._bench.world.is_main:
            for name in names:
                self._task.family.save(self._bench.rundir.path / name, weights)

    def state_dict(self) -> dict[str, Any]:
        """The best validation so far."""
        return {"best": self._best if math.isfinite(self._best) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved one."""
        self._best = math.inf if state["best"] is None else state["best"]


def read_pretrained(path: Path) -> DpoConfig | None:
    """The configuration of a weight file such as v_48_020.pt or best_model.pt; None if it is something else."""
    if path.suffix != ".pt":
        return None
    try:
        file = read_protein_mpnn(path)
    except UserError:
        return None
    return DpoConfig(family="protein", model=ModelConfig(protein=file.config))
