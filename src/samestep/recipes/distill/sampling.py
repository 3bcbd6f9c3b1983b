"""Vectors of many texts outside of training, shared out over the ranks, the same at any number of them; and with them
`samestep sample RUN --prompt TEXT`: the passages that the student finds for a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Trained, World
from samestep.core.config.bounds import Count
from samestep.core.records import Json
from samestep.data.records.reading import read_prompts
from samestep.kit.prompts import PromptOptions
from samestep.parallel.precision import autocast
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import Text, data_of
from samestep.recipes.distill.models import MODEL, STUDENT, Reading, open_models, pad_tokens, vectors_of
from samestep.recipes.distill.objective import unit_prefix
from samestep.recipes.distill.retrieval import rank_by_vectors
from samestep.train.trained.batch_inference import compute_rows, network_of


def embed_texts(
    network: nn.Module,
    reading: Reading,
    texts: Sequence[Text],
    world: World,
    batch_size: int,
    compute: torch.dtype | None = None,
) -> Tensor:
    """Vectors [texts, dim] on the CPU of every rank. Collective."""

    def embed(numbers: Sequence[int]) -> dict[str, Tensor]:
        rows = [{"text_ids": ids} for ids in reading([texts[number] for number in numbers])]
        tokens = pad_tokens(rows, {STUDENT: reading})
        ids, mask = (tokens[name].to(world.device) for name in ("text_ids", "text_mask"))
        with autocast(world.device, compute):
            return {"vector": vectors_of(network, ids, mask)}

    return compute_rows([len(text.text) for text in texts], batch_size, world, embed)["vector"]


@dataclass(frozen=True)
class SampleOptions(PromptOptions):
    """What to look for, and among what."""

    needs_prompt = True
    prompt: str | None = None
    """The query."""
    prompts: Path | None = None
    """A file with one query per line, or a .jsonl file whose lines hold "text"."""
    samples: Count = 5
    """Passages that are shown for each query, the closest first."""
    passages: Path | None = None
    """A file with a passage on each line, or a .jsonl file whose lines hold "text"; by default the passages that the
    run kept for validation."""
    dim: Count | None = None
    """Compare only so many numbers of a vector, for a student with Matryoshka dimensions; by default all."""
    batch_size: Count = 32
    """Texts at once on a device."""


def find_passages(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each query and passage, the closest first, on every rank."""
    config: DistillConfig = trained.config
    data, queries = data_of(trained), options.requests().prompts
    passages = read_prompts(options.passages) if options.passages else data.held_out.passages
    reading = open_models(config, data, world).readings[STUDENT]
    network, compute = network_of(trained, MODEL, world.device)
    texts = [*(Text(query, True) for query in queries), *(Text(passage, False) for passage in passages)]
    vectors = embed_texts(network, reading, texts, world, options.batch_size, compute)
    unit = unit_prefix(vectors, options.dim or vectors.shape[1])
    asked, known = unit[: len(queries)], unit[len(queries) :]
    found = zip(queries, rank_by_vectors(asked, known, options.samples), (asked @ known.T).tolist(), strict=True)
    return [
        {
            "prompt": query,
            "passage": number,
            "score": scores[number],
            "text": f"{scores[number]:.4f}  {' '.join(passages[number].split())}",
        }
        for query, ranked, scores in found
        for number in ranked
    ]
