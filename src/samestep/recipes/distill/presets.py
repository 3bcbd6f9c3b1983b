"""Named sets of values, and settings that have no effect beside others."""

from typing import Any

from samestep import NoEffect
from samestep.data.records.reading import only_for_records

_SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 300}
# 14 records end an epoch in a step with fewer rows than ranks.
_VERIFY: dict[str, Any] = {
    "data": {"limit": 14},
    "teacher": {"max_length": 24, "batch_size": 3, "shape": {**_SMALL, "width": 24}, "save_every": 2},
    "student": {"max_length": 24, "shape": _SMALL},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 5,
    "batch_size": 2,
    "max_steps": 4,
    "validate_every": 2,
    "phase1_lr": 3e-3,
    "phase2_lr": 3e-3,
}
PRESETS: dict[str, dict[str, Any]] = {
    # A small student learns from a random teacher and from Python's documentation, in two minutes on 2 CPU processes.
    "tiny": {
        "teacher": {"max_length": 96, "shape": {"width": 128, "layers": 2, "heads": 4, "vocabulary": 4000}},
        "student": {"max_length": 96, "shape": {"width": 64, "layers": 2, "heads": 4, "vocabulary": 4000}},
        "global_batch_size": 64,
        "batch_size": 32,
        "phase1_epochs": 2,
        "phase2_epochs": 4,
        "phase1_lr": 2e-3,
        "phase2_lr": 1e-3,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
    },
    # A student of two layers with random weights learns from a small published teacher: --teacher_model FOLDER. Some
    # minutes on 2 CPU processes.
    "small": {
        "data": {"sentences": True},
        "teacher": {"max_length": 128},
        "student": {"max_length": 128, "shape": {"width": 128, "layers": 2, "heads": 4, "vocabulary": 8000}},
        "rank": {"info_nce": 0.2, "mse": 0.8},
        "global_batch_size": 128,
        "batch_size": 64,
        "phase1_epochs": 20,
        "phase2_epochs": 3,
        "phase1_lr": 2e-3,
        "phase2_lr": 2e-4,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
    },
    # Thousands of records, a student that is a published model or has a teacher's layers: --teacher_model,
    # --student_model, --train_data. Phase 2 is contrast alone, which was better there, in one run, than
    # the teacher's vectors too (benchmarks/RESULTS.md).
    "contrastive": {
        "use_projection": False,
        "teacher": {"max_length": 128},
        "student": {"max_length": 128},
        "rank": {"info_nce": 1.0, "mse": 0.0, "temperature": 0.05},
        "global_batch_size": 256,
        "batch_size": 256,
        "phase1_epochs": 4,
        "phase2_epochs": 2,
        "phase1_lr": 5e-4,
        "phase2_lr": 1e-4,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
    },
    # A published 7B retriever into a published student of 110M parameters: --train_data FILE. None of its values sets
    # global_batch_size: --batch_size is for each process, as users of such scripts expect.
    "retriever": {
        "teacher_model": "infly/inf-retriever-v1-pro",
        "student_model": "sentence-transformers/all-mpnet-base-v2",
        "batch_size": 64,
        "out": "checkpoints",
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
        "schedule": "linear",
    },
    # Milliseconds a step in float64: cached vectors, a projection, the published losses.
    "verify": _VERIFY,
    # No projection, Matryoshka dimensions, mined negatives, all losses that have weight 0 by default.
    "verify-mining": {
        **_VERIFY,
        "use_projection": False,
        "student": {**_VERIFY["student"], "matryoshka_dims": [8, 4]},
        "mining": {"negatives": 2, "highest": 1.5},
        "rank": {"info_nce": 0.5, "margin_mse": 0.3, "kl": 0.2, "cosent": 0.1, "teacher_margin": 0.5},
    },
    # The teacher with every batch.
    "verify-live": {
        **_VERIFY,
        "teacher": {**_VERIFY["teacher"], "mode": "live"},
        "bucketed": False,
        "data": {"limit": 14, "sentences": True},
        "rank": {"teacher_margin": 0.1},
    },
}
OF_A_FOLDER = ("query_prompt_name", "passage_prompt_name", "attention", "append_eos")
"""Settings of how a model reads that only make sense for one in a folder."""
KNOWN_TEACHERS: dict[str, dict[str, Any]] = {
    "infly/inf-retriever-v1-pro": {"attention": "bidirectional", "append_eos": True},
}
"""What the code of published teachers does beyond their stock class, for settings that are left open."""
NO_EFFECT = (
    only_for_records(lambda c: not c.data.named),
    NoEffect("learning_rate", lambda c: True, "each phase has its own; set phase1_lr and phase2_lr, or leave it out"),
    NoEffect("epochs", lambda c: True, "each phase has its own; set phase1_epochs and phase2_epochs, or leave it out"),
    NoEffect(
        ("phase1_lr", "phase1_epochs", "phase1_samples", "max_samples_phase1", "align.*"),
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
        ("rank.scores", "rank.score_scale"),
        lambda c: not (c.rank.margin_mse or c.rank.kl),
        "only margin_mse and kl learn from these scores; set rank.margin_mse or rank.kl, or leave it out",
    ),
    NoEffect(
        "rank.score_scale",
        lambda c: c.rank.scores == "teacher",
        "it is for scores of records; set rank.scores=records, or leave it out",
    ),
    NoEffect("data.phase1", lambda c: c.skip_phase1, "phase 1 is skipped; leave it or skip_phase1 out"),
    NoEffect(
        ("data.validation_fraction", "data.validation_queries"),
        lambda c: c.data.validation is not None,
        "data.validation is a set of its own; leave out that (--val_data) or this",
    ),
    NoEffect(
        "data.test_fraction",
        lambda c: not c.data.named,
        "the documentation inside Python has no test part; name records with data.train, or leave it out",
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
        tuple(f"teacher.{name}" for name in OF_A_FOLDER),
        lambda c: c.teacher_model is None,
        "the built-in teacher has no folder; name a teacher_model, or leave it out",
    ),
    NoEffect(
        tuple(f"student.{name}" for name in OF_A_FOLDER),
        lambda c: c.student_model is None,
        "the built-in student has no folder; name a student_model, or leave it out",
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
