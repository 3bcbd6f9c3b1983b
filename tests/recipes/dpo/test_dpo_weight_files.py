"""When best_model.pt is written."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from samestep import Tick
from samestep.recipes.dpo.stages import BEST, WeightFiles


def test_best_model_is_written_for_finite_losses_alone(tmp_path: Path) -> None:
    saved: list[str] = []
    learner = SimpleNamespace(has_adapters=False, weights=lambda full: {})
    family = SimpleNamespace(save=lambda path, weights: saved.append(path.name))
    world, rundir = SimpleNamespace(is_main=True), SimpleNamespace(path=tmp_path)
    bench: Any = SimpleNamespace(validation={}, world=world, rundir=rundir)
    task: Any = SimpleNamespace(learner=learner, family=family)
    files, written = WeightFiles(task, bench), []
    for step, loss in enumerate([math.nan, 0.7, -math.inf, math.nan, 0.8, 0.6]):
        saved.clear()
        bench.validation = {BEST: loss}
        files.after_step(Tick(step, 0, last_of_epoch=False), {}, last=False)
        written.append("best_model.pt" in saved)
    assert written == [False, True, False, False, False, True]
    assert files.state_dict() == {"best": 0.6}
