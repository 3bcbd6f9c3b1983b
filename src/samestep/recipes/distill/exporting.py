"""The trained student as a folder of sentence-transformers: by `samestep export`, and when the last stage ends."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from samestep import Bench, Trained, World
from samestep.models.sentence_export import write_encoder
from samestep.recipes.distill.card import model_card
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import load_data
from samestep.recipes.distill.models import MODEL, Models, open_models
from samestep.recipes.distill.phase import NDCG, PhaseTask
from samestep.recipes.distill.rows import STUDENT
from samestep.train.pretrained.export import EXPORT_TYPES, ExportOptions


def export(trained: Trained, folder: Path, options: ExportOptions) -> None:
    """What `samestep export RUN FOLDER` does."""
    config: DistillConfig = trained.config
    models = open_models(config, load_data(config), World.single())
    weights = trained.network(MODEL).state_dict()
    write_student(folder, config, models, weights, {}, dtype=EXPORT_TYPES[options.dtype], overwrite=options.overwrite)


def write_artifact_folder(task: PhaseTask, bench: Bench) -> None:
    """The student as it is now, in the folder of artifacts under the name of the run. Every rank takes part, since
    weights may be sharded."""
    config: DistillConfig = bench.config
    weights = task.learner.weights(full=True)
    models = open_models(config, load_data(config), bench.world)
    folder = Path(config.artifacts_dir).expanduser() / bench.rundir.path.name
    best = bench.progress.best
    figures = {} if best is None else {NDCG: best}

    def write() -> None:
        if bench.world.is_main:
            write_student(folder, config, models, weights, figures, overwrite=True)

    bench.world.run_on_all_ranks(f"writing {folder}", write)
    bench.screen.print(f"wrote the student to {folder}")


def write_student(
    folder: Path,
    config: DistillConfig,
    models: Models,
    weights: Mapping[str, Tensor],
    figures: Mapping[str, float],
    dtype: torch.dtype = torch.float32,
    overwrite: bool = False,
) -> None:
    """The folder, with the instruction and the length that it was trained with."""
    reading = models.readings[STUDENT]
    prompts = dict(models.untrained.prompts)
    if reading.query_instruction:
        prompts["query"] = reading.query_instruction
    write_encoder(
        folder,
        replace(models.student, max_length=reading.max_length),
        weights,
        model_card(folder.name, config, models, figures),
        prompts=prompts,
        dtype=dtype,
        overwrite=overwrite,
    )
