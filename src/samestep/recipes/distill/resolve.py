"""What is filled in and checked before a run is recorded: the data, and the weights that phase 2 begins with."""

from dataclasses import replace
from pathlib import Path

from samestep import NoEffect, UserError
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


NO_EFFECT = (
    NoEffect("learning_rate", lambda c: True, "each phase has its own; set phase1_lr and phase2_lr, or leave it out"),
    NoEffect("epochs", lambda c: True, "each phase has its own; set phase1_epochs and phase2_epochs, or leave it out"),
    NoEffect(
        ("phase1_lr", "phase1_epochs", "align.*"),
        lambda c: c.skip_phase1,
        "phase 1 is skipped; leave out skip_phase1 or this",
        is_refused=False,
    ),
    NoEffect(
        ("phase2_lr", "phase2_epochs", "rank.*", "negatives", "mining.*"),
        lambda c: c.skip_phase2,
        "phase 2 is skipped; leave out skip_phase2 or this",
        is_refused=False,
    ),
    NoEffect(
        ("phase1_epochs", "phase2_epochs"),
        lambda c: c.max_steps is not None,
        "max_steps says how long each phase is; add max_steps=null, or leave it out",
        is_refused=False,
    ),
    NoEffect(
        ("data.validation_fraction", "data.validation_queries"),
        lambda c: c.data.validation is not None,
        "data.validation is a set of its own; leave out that (--val_data) or this",
    ),
    NoEffect(
        ("teacher.batch_size", "teacher.cache_dtype", "teacher.save_every"),
        lambda c: c.teacher.mode == "live",
        "a live teacher's vectors are not cached; set teacher.mode=cached, or leave it out",
    ),
    NoEffect(
        "teacher.shape.*",
        lambda c: c.teacher_model is not None,
        "the teacher is a model that is named; leave out teacher_model or this",
    ),
    NoEffect(
        "student.shape.*",
        lambda c: c.student_model is not None,
        "the student is a model that is named; leave out student_model or this",
    ),
    NoEffect(
        "mining.*", lambda c: not c.mining.negatives, "no negatives are mined; set mining.negatives, or leave it out"
    ),
    NoEffect(
        ("rank.temperature", "rank.teacher_margin"),
        lambda c: not c.rank.info_nce,
        "it is for info_nce, which has weight 0; set rank.info_nce, or leave it out",
    ),
    NoEffect(
        "rank.kl_temperature",
        lambda c: not c.rank.kl,
        "it is for kl, which has weight 0; set rank.kl, or leave it out",
    ),
    NoEffect(
        "rank.cosent_temperature",
        lambda c: not c.rank.cosent,
        "it is for cosent, which has weight 0; set rank.cosent, or leave it out",
    ),
    NoEffect(
        "artifacts_dir",
        lambda c: not c.save_to_artifacts,
        "no folder is written there; add --save_to_artifacts, or leave it out",
        is_refused=False,
    ),
)
"""Settings that have no effect beside others."""
