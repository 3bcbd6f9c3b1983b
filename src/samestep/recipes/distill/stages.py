"""The stages: the teacher's vectors (if they are cached), hard negatives (if wanted), phase 1, phase 2."""

from dataclasses import replace

from samestep import TRAINING_SETTINGS, Bench, Stage
from samestep.recipes.distill import align, mining, rank, teacher
from samestep.recipes.distill.align import Align
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.exporting import shown_mix, write_artifact_folder
from samestep.recipes.distill.mining import build_mining
from samestep.recipes.distill.phase import NDCG, PhaseTask
from samestep.recipes.distill.rank import Rank
from samestep.recipes.distill.teacher import build_cache

BEST = (f"val/{NDCG}", "max")
_OF_STUDENT = (
    "student_model",
    "student.*",
    "use_projection",
    "align.*",
    "rank.*",
    "negatives",
    "phase?_*",
    "skip_phase?",
)
_OF_PHASE_2 = ("rank.*", "negatives", "mining.*", "phase2_*", "skip_phase2")


def stages(config: DistillConfig) -> list[Stage]:
    """One to four."""
    found: list[Stage] = []
    unused: tuple[str, ...]
    if config.teacher.mode == "cached":
        unused = (*TRAINING_SETTINGS, "init_from", "bucketed", *_OF_STUDENT, "mining.*")
        found.append(Stage(teacher.STAGE, build_cache, config=cache_config, ignores=unused))
    if config.mining.negatives and not config.skip_phase2:
        unused = (*TRAINING_SETTINGS, "init_from", "bucketed", *_OF_STUDENT)
        found.append(Stage(mining.STAGE, build_mining, config=cache_config, ignores=unused))
    phases = []
    if not config.skip_phase1:
        phases.append(Stage(align.STAGE, Align, config=align_config, ignores=_OF_PHASE_2))
    if not config.skip_phase2:
        start = None if config.skip_phase1 else f"{align.STAGE}:best"
        phases.append(Stage(rank.STAGE, Rank, config=rank_config, start=start))
    phases = [replace(phase, validate=PhaseTask.validate, best=BEST) for phase in phases]
    phases[-1] = replace(phases[-1], finish=finish)
    return [*found, *phases]


def cache_config(config: DistillConfig) -> DistillConfig:
    """The settings of stages that only use the teacher: texts at once, and how much a kill may cost."""
    saves = replace(config.checkpoint, every_steps=config.teacher.save_every)
    return replace(config, batch_size=config.teacher.batch_size, checkpoint=saves)


def align_config(config: DistillConfig) -> DistillConfig:
    """The settings of phase 1."""
    return replace(config, learning_rate=config.phase1_lr, epochs=config.phase1_epochs)


def rank_config(config: DistillConfig) -> DistillConfig:
    """The settings of phase 2."""
    return replace(config, learning_rate=config.phase2_lr, epochs=config.phase2_epochs)


def finish(task: PhaseTask, bench: Bench) -> None:
    """Write the student for other programs, if that is wanted."""
    if bench.config.save_to_artifacts:
        write_artifact_folder(task, bench)


def describe(config: DistillConfig) -> dict[str, str]:
    """Data, models and objective, for the banner."""
    dims = config.student.matryoshka_dims
    sizes = f", Matryoshka at {', '.join(map(str, dims))}" if dims else ""
    pool = "" if config.rank.pool == "global" else "; passages of a micro-batch: depends on the number of devices"
    lines = {
        "dataset": ", ".join(config.data.named) or "pydoc_data.topics (the documentation inside Python)",
        "teacher": f"{config.teacher_model or 'built-in, random'} ({config.teacher.mode})",
        "student": f"{config.student_model or 'built-in, random'}, "
        + ("with a projection" if config.use_projection else "without a projection")
        + sizes,
    }
    if config.skip_phase1:
        lines["phase 1"] = f"skipped; begins with {config.init_from or 'the student as it is'}"
    else:
        lines["phase 1"] = shown_mix(config.align.mix)
    if config.skip_phase2:
        lines["phase 2"] = "skipped"
    else:
        lines["phase 2"] = shown_mix(config.rank.mix) + pool
    return lines
