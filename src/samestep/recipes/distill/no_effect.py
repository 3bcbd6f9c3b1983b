"""Settings that have no effect beside others. Flags that people's scripts pass in any case are said, not refused."""

from samestep import NoEffect

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
