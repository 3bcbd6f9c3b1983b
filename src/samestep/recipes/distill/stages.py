"""What a run does: what is filled in and refused before it is recorded, and its stages.

The stages are the teacher's vectors (if they are cached), hard negatives (if wanted), phase 1, phase 2.
"""

from dataclasses import replace
from pathlib import Path

from samestep import TRAINING_SETTINGS, Bench, Stage, UserError
from samestep.core.config import dump, flatten
from samestep.core.paths import expand_home
from samestep.core.rundir import RunDir
from samestep.data.order import MixedOrder
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import DistillData, load_data
from samestep.recipes.distill.exporting import best_step, shown_mix, write_artifact_folder
from samestep.recipes.distill.objective import COSINE, KL, MARGIN_MSE, RECORDS
from samestep.recipes.distill.presets import KNOWN_TEACHERS
from samestep.recipes.distill.task import ALIGN, NDCG, RANK, Align, PhaseTask, Rank
from samestep.recipes.distill.teacher import MINING_STAGE, TEACHER_STAGE, build_cache, build_mining
from samestep.train.api.dump import dump_config
from samestep.train.record.config import named_source
from samestep.train.record.run_record import RunRecord
from samestep.train.weights.run_checkpoints import choose_checkpoint

_SAME = (
    *("teacher_model", "student_model", "use_projection", "teacher.shape.", "student.shape.", "student.max_length"),
    *("student.attention", "student.append_eos"),
    *("data.", "seed", "max_samples_"),
)
"""Beginnings of settings that make two runs train the same network, with the same tokens, and keep the same queries
for validation."""
_TAKE_BEST = "set best_at_end=true, or give --which best to export and evaluate"
BEST = (f"val/{NDCG}", "max")
SHOWN = ("loss", COSINE, BEST[0], "val/recall@10", "val/mrr@10", f"val/{COSINE}")
_ONLY_TEACHER = (
    *(*TRAINING_SETTINGS, "init_from", "bucketed", "student_model", "student.*", "use_projection"),
    *("align.*", "rank.*", "negatives", "phase?_*", "skip_phase?"),
)
"""Settings that stages that only use the teacher ignore."""
_OF_PHASE_2 = ("rank.*", "negatives", "mining.*", "phase2_*", "skip_phase2")


def resolve_config(config: DistillConfig) -> DistillConfig:
    """The configuration, if its data can be used; with the weights of an earlier phase 1 where that is skipped."""
    if config.mining.negatives and config.teacher.mode == "live":
        raise UserError("Set teacher.mode=cached, or mining.negatives=0: negatives are mined with cached vectors.")
    known = KNOWN_TEACHERS.get((config.teacher_model or "").partition("@")[0], {})
    left_open = {name: value for name, value in known.items() if getattr(config.teacher, name) is None}
    config = replace(config, teacher=replace(config.teacher, **left_open))
    data = load_data(config)
    _require_negatives(config, data)
    if len(data.sources) > 1:  # refuses weights that are too far apart now, not after the teacher's stage
        MixedOrder([len(rows) for rows in data.sources], data.weights, 1, config.seed)
    if data.first is not None and len(data.first) > 1:
        MixedOrder([len(items) for items in data.first], data.first_weights, 1, config.seed)
    if config.skip_phase1 and named_source(config) is None:
        found = earlier_phase_1(config)
        return replace(config, init_from=str(found)) if found else config
    return config


def _require_negatives(config: DistillConfig, data: DistillData) -> None:
    """Refuse losses of negatives where no record has any."""
    if config.rank.scores == RECORDS:
        if not config.data.named:
            raise UserError("Name records with scores (train_data), or set rank.scores=teacher.")
        if config.mining.negatives:
            raise UserError("Set mining.negatives=0, or rank.scores=teacher: what is mined has no scores of records.")
    needing = " and ".join(f"rank.{name}" for name in (MARGIN_MSE, KL) if name in config.rank.mix)
    if config.skip_phase2 or not needing:
        return
    if not config.negatives:
        raise UserError(f"Set negatives to 1 or more: with 0 there is nothing to compare for {needing}.")
    if not config.mining.negatives and not any(row.negatives for row in data.table.rows):
        raise UserError(f"Give records negatives, or set mining.negatives: there are none to compare for {needing}.")


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
    if record is None or record.recipe != "distill":
        return False
    theirs, ours = (dict(flatten(DistillConfig, each)) for each in (record.config, dump(config)))
    return all(theirs.get(name) == ours[name] for name in ours if name.startswith(_SAME))


def stages(config: DistillConfig) -> list[Stage]:
    """One to four."""
    found: list[Stage] = []
    if config.teacher.mode == "cached":
        unused = (*_ONLY_TEACHER, "mining.*")
        found.append(Stage(TEACHER_STAGE, build_cache, config=_cache_config, ignores=unused))
    if config.mining.negatives and not config.skip_phase2:
        found.append(Stage(MINING_STAGE, build_mining, config=_cache_config, ignores=_ONLY_TEACHER))
    phases = []
    if not config.skip_phase1:
        phases.append(Stage(ALIGN, Align, config=_align_config, ignores=_OF_PHASE_2))
    if not config.skip_phase2:
        start = None if config.skip_phase1 else f"{ALIGN}:best"
        phases.append(Stage(RANK, Rank, config=_rank_config, start=start))
    phases = [replace(phase, validate=PhaseTask.validate, best=BEST, shown=SHOWN) for phase in phases]
    phases[-1] = replace(phases[-1], finish=hand_over)
    return [*found, *phases]


def _cache_config(config: DistillConfig) -> DistillConfig:
    return dump_config(config, config.teacher)


def _align_config(config: DistillConfig) -> DistillConfig:
    return replace(config, learning_rate=config.phase1_lr, epochs=config.phase1_epochs)


def _rank_config(config: DistillConfig) -> DistillConfig:
    """It validates what it begins with, so that it never hands over less."""
    return replace(config, learning_rate=config.phase2_lr, epochs=config.phase2_epochs, validate_at_start=True)


def hand_over(task: PhaseTask, bench: Bench) -> None:
    """What follows the last phase: a word where it found nothing better than what it began with, or ends with less than
    its best; and the folder of artifacts."""
    if bench.world.is_main and (best := best_step(bench.rundir, bench.stage)) is not None:
        if not bench.config.best_at_end and best != bench.progress.step:
            bench.screen.print(f"the last student is not the best by {BEST[0]}: that is of step {best:,}; {_TAKE_BEST}")
        elif bench.config.best_at_end and bench.stage == RANK and not best:
            bench.screen.print(f"phase 2 found nothing better by {BEST[0]}: the student is the one that it began with")
    write_artifact_folder(task, bench)


def describe(config: DistillConfig) -> dict[str, str]:
    """Data, models and objective, for the banner."""
    dims = config.student.matryoshka_dims
    sizes = f", Matryoshka at {', '.join(map(str, dims))}" if dims else ""
    pool = "" if config.rank.pool == "global" else "; passages of a micro-batch: depends on the number of devices"
    projection = "with a projection" if config.use_projection else "without a projection"
    start = config.init_from or "the student as it is"
    return {
        "dataset": ", ".join(config.data.named) or "pydoc_data.topics (the documentation inside Python)",
        "teacher": f"{config.teacher_model or 'built-in, random'} ({config.teacher.mode})",
        "student": f"{config.student_model or 'built-in, random'}, {projection}{sizes}",
        "phase 1": f"skipped; begins with {start}" if config.skip_phase1 else shown_mix(config.align.mix),
        "phase 2": "skipped" if config.skip_phase2 else shown_mix(config.rank.mix) + pool,
    }
