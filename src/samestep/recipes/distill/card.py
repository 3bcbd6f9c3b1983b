"""The model card of an exported student: what it is, how to use it, and how it was made."""

from collections.abc import Mapping

from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.models import Models
from samestep.recipes.distill.rows import STUDENT, TEACHER


def model_card(name: str, config: DistillConfig, models: Models, figures: Mapping[str, float]) -> str:
    """The text of README.md. `figures` are metrics of the retrieval set that was kept for validation."""
    parts = [_header(config), f"# {name}", _about(config, models), _usage(config, models), _training(config, models)]
    if figures:
        shown = "\n".join(f"| {metric} | {value:.4f} |" for metric, value in figures.items())
        text = "On the queries that were kept for validation, with whole vectors:"
        parts.append(f"## Evaluation\n\n{text}\n\n| metric | value |\n|---|---|\n{shown}")
    return "\n\n".join(parts) + "\n"


def _header(config: DistillConfig) -> str:
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    lines += ["tags:", "- sentence-transformers", "- sentence-similarity", "- feature-extraction"]
    student = config.student_model or ""
    if student.count("/") == 1 and not student.startswith((".", "/", "~")):
        lines.append(f"base_model: {student.partition('@')[0]}")
    return "\n".join(["---", *lines, "---"])


def _about(config: DistillConfig, models: Models) -> str:
    reading, dim = models.readings[STUDENT], models.dims[0]
    teacher = config.teacher_model or "a small network with random weights"
    student = config.student_model or "a small network with random weights"
    text = (
        f"A sentence encoder that maps a text of up to {reading.max_length} tokens to a vector of {dim} numbers. It "
        f"was distilled from {teacher} (vectors of {models.teacher.dim}) into {student}"
    )
    if config.use_projection:
        return f"{text}, with a projection to the teacher's size behind it."
    return f"{text}, which learned the first {dim} numbers of the teacher's vectors, scaled to length 1."


def _usage(config: DistillConfig, models: Models) -> str:
    prompt = ', prompt_name="query"' if models.readings[STUDENT].query_instruction else ""
    lines = [
        "## Usage",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("PATH")',
        f'queries = model.encode(["how is a tuple written?"]{prompt})',
        'passages = model.encode(["A tuple is written with commas, usually in parentheses."])',
        "print(model.similarity(queries, passages))",
        "```",
    ]
    smaller = models.dims[1:]
    if smaller:
        sizes = ", ".join(map(str, smaller))
        lines += ["", f"It was also trained at {sizes}: `SentenceTransformer(..., truncate_dim={smaller[0]})`, with"]
        lines[-1] += " `model.encode(..., normalize_embeddings=True)`."
    return "\n".join(lines)


def _training(config: DistillConfig, models: Models) -> str:
    reading = models.readings[TEACHER]
    rows = {
        "data": ", ".join(config.data.named) or "the documentation inside Python (pydoc_data.topics)",
        "teacher": config.teacher_model or "random weights",
        "teacher's query instruction": repr(reading.query_instruction) if reading.query_instruction else "none",
        "global batch": config.global_batch_size,
    }
    if not config.skip_phase1:
        rows["phase 1"] = f"{_mix(config.align.mix)}, {config.phase1_epochs} epochs, peak rate {config.phase1_lr:g}"
    if not config.skip_phase2:
        rows["phase 2"] = f"{_mix(config.rank.mix)}, {config.phase2_epochs} epochs, peak rate {config.phase2_lr:g}"
    if config.mining.negatives:
        rows["hard negatives"] = f"{config.mining.negatives} a record, mined with the teacher"
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["## Training", "", "Trained with samestep, recipe `distill`.", "", "| | |", "|---|---|", *lines])


def _mix(mix: Mapping[str, float]) -> str:
    return " + ".join(f"{weight:g} {name}" for name, weight in mix.items())
