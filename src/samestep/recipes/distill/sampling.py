"""Vectors of many texts outside of training, shared out over the ranks, the same at any number of them; and with them
`samestep sample RUN --prompt TEXT`: the passages that the student finds for a query. In Python the same are
`model.embed(texts)` and `model.search(query)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from samestep import Trained, UserError, World, open_encoder
from samestep.core.config.bounds import Count
from samestep.core.json_files import Json
from samestep.kit.prompts import PromptOptions, as_texts, read_prompts
from samestep.parallel.precision import autocast
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import Text, data_of
from samestep.recipes.distill.models import (
    MODEL,
    STUDENT,
    Reading,
    needs_data,
    open_models,
    pad_tokens,
    vectors_of,
)
from samestep.recipes.distill.objective import unit_prefix
from samestep.recipes.distill.retrieval import rank_by_vectors
from samestep.train.trained.batch_inference import compute_rows, network_of
from samestep.train.trained.model import Model


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
    _among: ClassVar[Sequence[str] | None] = None
    """Passages that came from Python: no flag."""
    prompt: str | None = None
    """The query."""
    prompts: Path | None = None
    """A text file with one query per line, or records with a column `prompt` (or `text`)."""
    samples: Count = 5
    """Passages that are shown for each query, the closest first."""
    passages: Path | None = None
    """A text file with a passage on each line, or records with a column `prompt` (or `text`); by default the
    passages that the run kept for validation."""
    dim: Count | None = None
    """Compare only so many numbers of a vector, for a student with Matryoshka dimensions; by default all."""
    batch_size: Count = 32
    """Texts at once on a device."""

    def of(self, prompts: Sequence[str], among: Sequence[str] | None = None) -> Self:
        """These options, for queries and passages that are given in Python."""
        given = super().of(prompts)
        object.__setattr__(given, "_among", among)
        return given

    def candidates(self, otherwise: Callable[[], Sequence[str]]) -> Sequence[str]:
        """The passages that were given, or others."""
        if self._among is not None:
            return self._among
        return otherwise() if self.passages is None else read_prompts(self.passages)


def find_passages(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each query and passage, the closest first, on every rank."""
    queries, (reading, _) = options.requests().prompts, _reading_of(trained, world)
    passages = options.candidates(lambda: _kept_passages(trained))
    network, compute = network_of(trained, MODEL, world.device)
    texts = [*(Text(query, True) for query in queries), *(Text(passage, False) for passage in passages)]
    vectors = embed_texts(network, reading, texts, world, options.batch_size, compute)
    unit = unit_prefix(vectors, _size(options.dim, vectors.shape[1]))
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


def _kept_passages(trained: Trained) -> Sequence[str]:
    """Those that the run kept for validation."""
    if trained.form:
        raise UserError(f"Give the passages to choose from (--passages FILE): the folder {trained.source} has none.")
    return data_of(trained).held_out.passages


def _reading_of(trained: Trained, world: World) -> tuple[Reading, int]:
    """How the student reads, and the length of its vectors; an exported folder says that itself. Collective."""
    if trained.form:
        source = open_encoder(trained.source)
        return Reading(
            source.tokenizer, source.max_length, source.prompt("query"), source.prompt("passage")
        ), source.dim
    config: DistillConfig = trained.config
    models = open_models(config, data_of(trained) if needs_data(config) else None, world)
    return models.readings[STUDENT], models.student.dim


def _size(wanted: int | None, whole: int) -> int:
    """How many numbers of a vector are meant."""
    if wanted is not None and not 1 <= wanted <= whole:
        raise UserError(f"Set dim from 1 to {whole}, the size of the student's vectors; it is {wanted}.")
    return wanted or whole


def embed(
    model: Model, texts: str | Sequence[str], is_query: bool = False, batch_size: int = 32, dim: int | None = None
) -> Tensor:
    """`model.embed(texts)`: vectors [texts, dim] on the CPU, those of `encode_document` of the exported folder, or of
    `encode_query`. Fewer numbers are the first ones, as with `truncate_dim`: such a vector is not of length 1."""
    given = as_texts(texts)
    if batch_size < 1:
        raise UserError(f"Set batch_size to 1 or more; it is {batch_size}.")
    reading, whole = _reading_of(model.trained, model.world)
    size = _size(dim, whole)
    asked = [Text(text, is_query) for text in given]
    return embed_texts(model.network, reading, asked, model.world, batch_size)[:, :size]


def search(
    model: Model,
    query: str | Sequence[str],
    passages: str | Sequence[str] | None = None,
    samples: int = 5,
    **options: Any,
) -> list[dict[str, Json]]:
    """`model.search(query)`: for each query the records of the closest passages, among those given, or those that the
    run kept for validation. Options and settings are those of `samestep sample`."""
    queries, among = as_texts(query), None if passages is None else as_texts(passages)
    assert model.recipe.sample is not None
    found: list[dict[str, Json]] = model.use(
        model.recipe.sample, lambda own: own.of(queries, among), prompt=queries[0], samples=samples, **options
    )
    return found
