"""The trained student as a folder of sentence-transformers, with its card: by `samestep export`, and when the last
stage ends.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from samestep import Bench, Trained, UserError, World
from samestep.core.json_files import expected_content, read_object
from samestep.core.paths import expand_home
from samestep.core.rundir import RunDir
from samestep.data.records.mixture import parse_sources
from samestep.models.sentence_export import write_encoder_files
from samestep.models.sentence_onnx import FILE as ONNX
from samestep.models.sentence_onnx import require_onnx
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import data_of, texts_file
from samestep.recipes.distill.models import MODEL, STUDENT, TEACHER, Models, as_trained, needs_data, open_models
from samestep.recipes.distill.task import ALIGN, RANK, PhaseTask
from samestep.train.trained.export import (
    EXPORT_TYPES,
    ExportOptions,
    check_target,
    quoted,
    staging_folder,
    told_record,
)
from samestep.train.trained.model_card import ModelCard, listing, trained_card
from samestep.train.trained.published import SENTENCE_TRANSFORMERS
from samestep.train.trained.told import is_of_hub, told_text
from samestep.train.trained.trained_model import open_trained
from samestep.train.weights.run_checkpoints import choose_checkpoint

_ANYWHERE = "path/to/this/folder"
_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]


def export(trained: Trained, folder: Path, options: ExportOptions) -> list[str]:
    """What `samestep export RUN FOLDER` does."""
    if trained.form:
        raise UserError(f"{trained.source} has that form already; export the run that it came from.")
    check_target(folder, options.overwrite)
    if options.onnx:
        require_onnx()
    data = data_of(trained) if needs_data(trained.config) else None
    models = open_models(trained.config, data, World.single())
    _write(trained, models, folder, options)
    return _usage(folder, models, options)


def write_artifact_folder(task: PhaseTask, bench: Bench) -> None:
    """What `samestep export` would write of this stage, which has ended, in the folder of artifacts under the name of
    the run, if that is wanted. Collective."""
    config: DistillConfig = bench.config
    if not config.save_to_artifacts:
        return
    run, which = bench.rundir.path, "best" if config.best_at_end else "last"
    folder = expand_home(config.artifacts_dir) / run.name

    def write() -> None:
        if bench.world.is_main:
            _write(open_trained(str(run), which, stage=bench.stage), task.models, folder, ExportOptions(overwrite=True))

    bench.world.run_on_all_ranks(f"writing {folder}", write)
    bench.screen.print(f"wrote the student to {folder}")


def _write(trained: Trained, models: Models, folder: Path, options: ExportOptions) -> None:
    """The folder, with the instructions and the length that the student was trained with."""
    source = as_trained(models)
    weights = trained.network(MODEL).state_dict()
    card, dtype = str(_card(trained, models, options)), EXPORT_TYPES[options.dtype]
    record = told_record(trained, MODEL, SENTENCE_TRANSFORMERS, models={"student_model": "."})
    with staging_folder(folder, options.overwrite, record) as staging:
        write_encoder_files(staging, source, weights, card, prompts=source.prompts, dtype=dtype, onnx=options.onnx)


def _usage(folder: str | Path, models: Models, options: ExportOptions) -> list[str]:
    """Lines of Python that load it."""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f"model = SentenceTransformer({quoted(folder)})",
        'queries = model.encode_query(["how do I sort a list"])',
        'passages = model.encode_document(["list.sort() sorts a list in place."])',
        "print(model.similarity(queries, passages))",
    ]
    if shorter := models.dims[1:]:
        lines += ["", f"short = SentenceTransformer({quoted(folder)}, truncate_dim={min(shorter)})  # shorter vectors"]
    if options.onnx:
        session = f"session = onnxruntime.InferenceSession({quoted(f'{folder}/{ONNX}')})"
        lines += ["", "import onnxruntime", "", f"{session}  # its sentence_embedding is the vector"]
    return lines


def _card(trained: Trained, models: Models, options: ExportOptions) -> ModelCard:
    config: DistillConfig = trained.config
    base = _told(config.student_model)
    began = "random weights" if base is None else f"`{base}`"
    return trained_card(
        trained,
        f"A sentence-transformers model that maps a text to a vector of {models.student.dim} numbers. It began as "
        f"{began} and was trained to reproduce the vectors of {_teacher(config)}.",
        _usage(_ANYWHERE, models, options),
        options.licence,
        base="none, a small network with random weights" if base is None else f"`{base}`",
        header={
            "library_name": "sentence-transformers",
            "pipeline_tag": "sentence-similarity",
            "tags": _TAGS,
            "base_model": _of_hub([config.student_model or ""]),
            "datasets": _of_hub([path for path, _ in parse_sources(config.data.named)] if config.data.named else []),
        },
        sections={"Vectors": listing(_vectors(models)), "Distillation": listing(_distillation(trained, models))},
    )


def _of_hub(names: Sequence[str]) -> list[str]:
    return [name.partition("@")[0] for name in names if is_of_hub(name) and told_text(name)]


def _told(name: str | None) -> str | None:
    """The name of a model without the folders of this machine."""
    return name and (told_text(name) or "a model whose name is not told")


def _teacher(config: DistillConfig) -> str:
    name = _told(config.teacher_model)
    return f"`{name}`" if name else "a small network with random weights"


def _vectors(models: Models) -> dict[str, str]:
    with torch.device("meta"):
        head = models.student.network().head
    prompts = {name: json.dumps(text, ensure_ascii=False) for name, text in as_trained(models).prompts.items() if text}
    return {
        "Dimensions": str(models.student.dim),
        "Longest text": f"{models.readings[STUDENT].max_length} tokens",
        "Similarity": models.student.similarity,
        "Trained to be cut to": ", ".join(map(str, models.dims[1:])),
        "Modules": ", ".join(["Transformer", "Pooling", *(str(part.kind) for part in head)]),
        **{f"Prompt `{name}`": text for name, text in prompts.items()},
    }


def _distillation(trained: Trained, models: Models) -> dict[str, str]:
    """By whom it was taught, and what; the steps are those that this network has behind it."""
    config: DistillConfig = trained.config
    reading, steps = models.readings[TEACHER], steps_done(trained)
    facts = {"Teacher": _teacher(config)}
    before = {"query": reading.query_instruction, "passage": reading.passage_instruction}
    facts |= {f"The teacher's {kind} instruction": repr(text) for kind, text in before.items() if text}
    if config.skip_phase1 and config.init_from:
        facts["Phase 1"] = "in an earlier run"
    phases = {
        ALIGN: ("Phase 1", config.align.mix, config.phase1_lr),
        RANK: ("Phase 2", config.rank.mix, config.phase2_lr),
    }
    for stage, done in steps.items():
        name, mix, rate = phases[stage]
        facts[name] = f"{shown_mix(mix)}; {done:,} steps, rate {rate:g}" if done else "none of its steps made it better"
    if config.mining.negatives and steps.get(RANK):
        facts["Hard negatives"] = f"{config.mining.negatives} a record, mined with the teacher"
    if file := texts_file(trained):
        with expected_content(file):
            facts["Queries for validation"] = f"{int(read_object(file)['queries']):,}"
    return facts


def steps_done(trained: Trained) -> dict[str, int]:
    """By phase, the steps that a network of a run has behind it: in phase 2 also those of the best of phase 1."""
    if trained.run is None:
        return {}
    before = best_step(trained.run, ALIGN) if trained.stage == RANK else None
    return {**({} if before is None else {ALIGN: before}), trained.stage: _step_of(trained.source)}


def best_step(run: RunDir, stage: str) -> int | None:
    """The step of a stage's best checkpoint, by what it was validated with; None where there is none."""
    try:
        return _step_of(choose_checkpoint(run, "best", stage=stage, damage_of=lambda path: None))
    except UserError:
        return None


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("_")[2])


def shown_mix(mix: Mapping[str, float]) -> str:
    """The terms of a loss with their weights."""
    return " + ".join(f"{weight:g} {name}" for name, weight in mix.items())
