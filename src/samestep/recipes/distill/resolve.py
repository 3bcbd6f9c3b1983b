"""What is filled in and checked before a run is recorded: the data, and the weights that phase 2 begins with."""

from dataclasses import replace
from pathlib import Path

from samestep import UserError
from samestep.core.config import dump, flatten
from samestep.core.paths import expand_home
from samestep.core.rundir import RunDir
from samestep.data.order import MixedOrder
from samestep.recipes.distill.align import STAGE as ALIGN
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import load_data
from samestep.train.record.config import named_source
from samestep.train.record.run_record import RunRecord
from samestep.train.weights.run_checkpoints import choose_checkpoint

RECIPE = "distill"
_SAME = (
    *("teacher_model", "student_model", "use_projection", "teacher.shape.", "student.shape.", "student.max_length"),
    *("data.", "seed", "max_samples_"),
)
"""Beginnings of settings that make two runs train the same network, with the same tokens, and keep the same queries
for validation."""


def resolve_config(config: DistillConfig) -> DistillConfig:
    """The configuration, if its data can be used; with the weights of an earlier phase 1 where that is skipped."""
    if config.mining.negatives and config.teacher.mode == "live":
        raise UserError("Set teacher.mode=cached, or mining.negatives=0: negatives are mined with cached vectors.")
    data = load_data(config)
    if len(data.sources) > 1:  # refuses weights that are too far apart now, not after the teacher's stage
        MixedOrder([len(rows) for rows in data.sources], data.weights, 1, config.seed)
    if config.skip_phase1 and named_source(config) is None:
        found = earlier_phase_1(config)
        return replace(config, init_from=str(found)) if found else config
    return config


def earlier_phase_1(config: DistillConfig) -> Path | None:
    """The best checkpoint of phase 1 of the newest run beside this one that trained the same network."""
    runs = sorted(expand_home(config.out).glob("*/"), key=lambda run: run.stat().st_mtime, reverse=True)
    for run in map(RunDir, runs):
        if _trains_the_same(run, config):
            return choose_checkpoint(run, "best", stage=ALIGN)
    return None


def _trains_the_same(run: RunDir, config: DistillConfig) -> bool:
    """Whether a run is one of this recipe, with the same models, that has ended phase 1."""
    if not run.done(ALIGN).is_file():
        return False
    record = RunRecord.read_if_readable(run)
    if record is None or record.recipe != RECIPE:
        return False
    theirs, ours = (dict(flatten(DistillConfig, each)) for each in (record.config, dump(config)))
    return all(theirs.get(name) == ours[name] for name in ours if name.startswith(_SAME))
