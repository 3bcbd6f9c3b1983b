"""The trained student as a folder of sentence-transformers: by `samestep export`, and when the last stage ends. Its
model card says what is true of it, and nothing else.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep import Bench, Trained, World, write_encoder
from samestep.core.paths import expand_home
from samestep.core.records import JsonLines, expected_content, read_object
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import data_of, texts_file
from samestep.recipes.distill.models import MODEL, STUDENT, TEACHER, Models, needs_data, open_models
from samestep.recipes.distill.task import NDCG, PhaseTask
from samestep.train.trained.export import EXPORT_TYPES, ExportOptions

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction")


@dataclass(frozen=True)
class CardFacts:
    """What is known of a student. What is not given is not mentioned."""

    title: str
    dim: int
    """The length of its vectors."""
    max_length: int
    """How many tokens of a text it reads."""
    teacher: str
    base_model: str | None = None
    """What it began as; None: random weights."""
    similarity: str = "cosine"
    prompts: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    """The names of its modules, in order."""
    shorter: Sequence[int] = ()
    """The dimensions that its vectors were trained to be cut to."""
    data: Sequence[str] = ()
    """The names of the data it was trained on."""
    training: Mapping[str, object] = field(default_factory=dict)
    """Settings of its training, by their names."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By model, its metrics; models that lack one get an empty cell."""
    measured_on: str = ""
    """What the metrics were measured on."""


def export(trained: Trained, folder: Path, options: ExportOptions) -> None:
    """What `samestep export RUN FOLDER` does."""
    config: DistillConfig = trained.config
    data = data_of(trained) if needs_data(config) else None
    models = open_models(config, data, World.single())
    weights = trained.network(MODEL).state_dict()
    queries = 0
    if file := texts_file(trained):
        with expected_content(file):
            queries = int(read_object(file)["queries"])  # that were kept for validation
    facts = card_facts(folder.name, config, models, validated(trained) if queries else {}, queries)
    _write(folder, models, weights, facts, EXPORT_TYPES[options.dtype], options.overwrite)


def validated(trained: Trained) -> dict[str, float]:
    """What the run's own validation found of this checkpoint, if it is one that was validated."""
    if trained.run is None:
        return {}
    step = int(trained.source.name.rpartition("_")[2])
    found: dict[str, float] = {}
    for row in JsonLines(trained.run.metrics):
        if row.get("stage") == trained.stage and row.get("step") == step:
            found |= {name.removeprefix("val/"): value for name, value in row.items() if name.startswith("val/")}
    return found


def write_artifact_folder(task: PhaseTask, bench: Bench) -> None:
    """The student as it is now, in the folder of artifacts under the name of the run, if that is wanted. Every rank
    takes part, since weights may be sharded."""
    config: DistillConfig = bench.config
    if not config.save_to_artifacts:
        return
    models, held_out = task.models, task.data.held_out
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


def _write(
    folder: Path, models: Models, weights: Mapping[str, Tensor], facts: CardFacts, dtype: torch.dtype, overwrite: bool
) -> None:
    """The folder, with the instruction and the length that the student was trained with."""
    source = replace(models.student, max_length=facts.max_length)
    write_encoder(folder, source, weights, model_card(facts), prompts=facts.prompts, dtype=dtype, overwrite=overwrite)


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
        teacher=config.teacher_model or "a small network with random weights",
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


def model_card(facts: CardFacts) -> str:
    """The text of README.md, with the header that the Hub reads."""
    training = {**({"Data": ", ".join(facts.data)} if facts.data else {}), **facts.training}
    parts = [
        _header(facts),
        f"# {facts.title}",
        _introduction(facts),
        _usage(facts),
        _section("Vectors", _vectors(facts)),
        _section("Training", "\n".join(f"- {name}: {value}" for name, value in training.items())),
        _section("Evaluation", _evaluation(facts)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(facts: CardFacts) -> str:
    """YAML; a path of this machine is no name for the Hub."""
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in _TAGS]
    if facts.base_model is not None and _is_of_hub(facts.base_model):
        lines += ["base_model:", f"- {json.dumps(facts.base_model)}"]
    datasets = [name for name in facts.data if _is_of_hub(name)]
    lines += ["datasets:", *(f"- {json.dumps(name)}" for name in datasets)] if datasets else []
    return "\n".join(("---", *lines, "---"))


def _is_of_hub(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _introduction(facts: CardFacts) -> str:
    base = "random weights" if facts.base_model is None else f"`{facts.base_model}`"
    return (
        f"A sentence-transformers model that maps a text to a vector of {facts.dim} numbers. It began as {base} and "
        f"was trained to reproduce the vectors of `{facts.teacher}`."
    )


def _usage(facts: CardFacts) -> str:
    """How to load it; the name is a placeholder, since nobody knows where the folder will be."""
    query = ', prompt_name="query"' if "query" in facts.prompts else ""
    passage = next((f', prompt_name="{name}"' for name in ("passage", "document") if name in facts.prompts), "")
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("path/to/this/folder")',
        f'queries = model.encode(["how do I sort a list"]{query})',
        f'passages = model.encode(["list.sort() sorts a list in place."]{passage})',
        "print(model.similarity(queries, passages))",
    ]
    if facts.shorter:
        size = min(facts.shorter)
        lines += ["", f'short = SentenceTransformer("path/to/this/folder", truncate_dim={size})  # shorter vectors']
    return _section("Usage", "\n".join(("```python", *lines, "```")))


def _vectors(facts: CardFacts) -> str:
    lines = [f"- Dimensions: {facts.dim}", f"- Longest text: {facts.max_length} tokens"]
    lines.append(f"- Similarity: {facts.similarity}")
    if facts.shorter:
        lines.append(f"- Trained to be cut to: {', '.join(map(str, facts.shorter))}")
    if facts.modules:
        lines.append(f"- Modules: {', '.join(facts.modules)}")
    lines += [f"- Prompt `{name}`: {json.dumps(text, ensure_ascii=False)}" for name, text in facts.prompts.items()]
    return "\n".join(lines)


def _evaluation(facts: CardFacts) -> str:
    if not facts.metrics:
        return ""
    names = list(dict.fromkeys(name for row in facts.metrics.values() for name in row))
    rows = [_row(["model", *names]), _row(["---"] * (len(names) + 1))]
    for model, found in facts.metrics.items():
        rows.append(_row([model, *(f"{found[name]:.4f}" if name in found else "" for name in names)]))
    table = "\n".join(rows)
    return f"Measured on {facts.measured_on}.\n\n{table}" if facts.measured_on else table


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""
