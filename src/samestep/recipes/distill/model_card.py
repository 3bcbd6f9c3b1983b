"""The model card of an exported student: what is true of it, and nothing else."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction")
_COLUMN = "model"


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


def model_card(facts: CardFacts) -> str:
    """The text of README.md, with the header that the Hub reads."""
    parts = [
        _header(facts),
        f"# {facts.title}",
        _introduction(facts),
        _usage(facts),
        _section("Vectors", _vectors(facts)),
        _section("Training", _training(facts)),
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
        lines += [
            "",
            f'short = SentenceTransformer("path/to/this/folder", truncate_dim={min(facts.shorter)})  # shorter vectors',
        ]
    return _section("Usage", "\n".join(("```python", *lines, "```")))


def _vectors(facts: CardFacts) -> str:
    lines = [
        f"- Dimensions: {facts.dim}",
        f"- Longest text: {facts.max_length} tokens",
        f"- Similarity: {facts.similarity}",
    ]
    if facts.shorter:
        lines.append(f"- Trained to be cut to: {', '.join(map(str, facts.shorter))}")
    if facts.modules:
        lines.append(f"- Modules: {', '.join(facts.modules)}")
    lines += [f"- Prompt `{name}`: {json.dumps(text, ensure_ascii=False)}" for name, text in facts.prompts.items()]
    return "\n".join(lines)


def _training(facts: CardFacts) -> str:
    lines = [f"- Data: {', '.join(facts.data)}"] if facts.data else []
    lines += [f"- {name}: {value}" for name, value in facts.training.items()]
    return "\n".join(lines)


def _evaluation(facts: CardFacts) -> str:
    if not facts.metrics:
        return ""
    names = list(dict.fromkeys(name for row in facts.metrics.values() for name in row))
    rows = [_row([_COLUMN, *names]), _row(["---"] * (len(names) + 1))]
    for model, found in facts.metrics.items():
        rows.append(_row([model, *(f"{found[name]:.4f}" if name in found else "" for name in names)]))
    table = "\n".join(rows)
    return f"Measured on {facts.measured_on}.\n\n{table}" if facts.measured_on else table


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""
