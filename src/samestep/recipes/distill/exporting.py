"""The trained student as a folder of sentence-transformers: by `samestep export`, and when the last stage ends."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep import Bench, Trained, World, write_encoder
from samestep.core.paths import expand_home
from samestep.core.records import JsonLines, expected_content, read_object
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import data_of, texts_file
from samestep.recipes.distill.model_card import CardFacts, model_card
from samestep.recipes.distill.models import MODEL, Models, needs_data, open_models
from samestep.recipes.distill.phase import NDCG, PhaseTask
from samestep.recipes.distill.rows import STUDENT, TEACHER
from samestep.train.trained.export import EXPORT_TYPES, ExportOptions

_VALIDATION = "val/"
_RANDOM = "a small network with random weights"


def export(trained: Trained, folder: Path, options: ExportOptions) -> None:
    """What `samestep export RUN FOLDER` does."""
    config: DistillConfig = trained.config
    data = data_of(trained) if needs_data(config) else None
    models = open_models(config, data, World.single())
    weights = trained.network(MODEL).state_dict()
    file = texts_file(trained)
    queries = _queries(file) if file else 0
    facts = card_facts(folder.name, config, models, validated(trained) if queries else {}, queries)
    _write(folder, models, weights, facts, EXPORT_TYPES[options.dtype], options.overwrite)


def _queries(file: Path) -> int:
    """How many queries were kept for validation."""
    with expected_content(file):
        return int(read_object(file)["queries"])


def validated(trained: Trained) -> dict[str, float]:
    """What the run's own validation found of this checkpoint, if it is one that was validated."""
    if trained.run is None:
        return {}
    step = int(trained.source.name.rpartition("_")[2])
    rows = [
        row for row in JsonLines(trained.run.metrics) if row.get("stage") == trained.stage and row.get("step") == step
    ]
    found = {name: value for row in rows for name, value in row.items() if name.startswith(_VALIDATION)}
    return {name.removeprefix(_VALIDATION): value for name, value in found.items()}


def write_artifact_folder(task: PhaseTask, bench: Bench) -> None:
    """The student as it is now, in the folder of artifacts under the name of the run. Every rank takes part, since
    weights may be sharded."""
    config: DistillConfig = bench.config
    models, held_out = task.phase.models, task.phase.data.held_out
    weights = task.learner.weights(full=True)
    folder = expand_home(config.artifacts_dir) / bench.rundir.path.name
    best = bench.progress.best
    metrics = {NDCG: best} if best is not None and config.best_at_end else {}

    def write() -> None:
        if bench.world.is_main:
            facts = card_facts(folder.name, config, models, metrics, len(held_out.queries))
            _write(folder, models, weights, facts, torch.float32, overwrite=True)

    bench.world.run_on_all_ranks(f"writing {folder}", write)
    bench.screen.print(f"wrote the student to {folder}")


def card_facts(
    title: str, config: DistillConfig, models: Models, metrics: Mapping[str, float], queries: int
) -> CardFacts:
    """What is true of a student; `metrics` are its metrics on the queries that were kept for validation."""
    reading = models.readings[STUDENT]
    with torch.device("meta"):
        head = models.student.network().head
    return CardFacts(
        title=title,
        dim=models.student.dim,
        max_length=reading.max_length,
        teacher=config.teacher_model or _RANDOM,
        base_model=config.student_model,
        similarity=models.student.similarity,
        prompts=_prompts(models),
        modules=["Transformer", "Pooling", *(str(part.kind) for part in head)],
        shorter=models.dims[1:],
        data=config.data.named or ["the documentation inside Python (pydoc_data.topics)"],
        training=_training(config, models),
        metrics={"student": metrics} if metrics else {},
        measured_on=f"{queries:,} queries that were kept for validation",
    )


def _training(config: DistillConfig, models: Models) -> dict[str, Any]:
    reading = models.readings[TEACHER]
    facts: dict[str, Any] = {"Global batch": config.global_batch_size}
    if reading.query_instruction:
        facts["The teacher's query instruction"] = repr(reading.query_instruction)
    if config.skip_phase1 and config.init_from:
        facts["Phase 1"] = "in an earlier run"
    if not config.skip_phase1:
        facts["Phase 1"] = f"{shown_mix(config.align.mix)}; {config.phase1_epochs} epochs, rate {config.phase1_lr:g}"
    if not config.skip_phase2:
        facts["Phase 2"] = f"{shown_mix(config.rank.mix)}; {config.phase2_epochs} epochs, rate {config.phase2_lr:g}"
    if config.mining.negatives:
        facts["Hard negatives"] = f"{config.mining.negatives} a record, mined with the teacher"
    return facts


def shown_mix(mix: Mapping[str, float]) -> str:
    """The terms of a loss with their weights."""
    return " + ".join(f"{weight:g} {name}" for name, weight in mix.items())


def _prompts(models: Models) -> dict[str, str]:
    reading = models.readings[STUDENT]
    before = models.untrained.prompts
    own = {"query": reading.query_instruction} if reading.query_instruction or "query" in before else {}
    return {**before, **own}


def _write(
    folder: Path, models: Models, weights: Mapping[str, Tensor], facts: CardFacts, dtype: torch.dtype, overwrite: bool
) -> None:
    """The folder, with the instruction and the length that the student was trained with."""
    source = replace(models.student, max_length=facts.max_length)
    write_encoder(folder, source, weights, model_card(facts), prompts=facts.prompts, dtype=dtype, overwrite=overwrite)
