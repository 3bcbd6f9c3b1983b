"""Vectors of many texts outside of training, shared out over the ranks, the same at any number of them; and with them
`samestep sample RUN --query TEXT`: the passages that the student finds for a query.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.output import print_text
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts
from samestep.parallel.precision import autocast
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import Text, data_of
from samestep.recipes.distill.models import MODEL, STUDENT, Reading, open_models, pad_tokens, vectors_of
from samestep.recipes.distill.objective import unit_prefix
from samestep.recipes.distill.retrieval import rank_by_vectors
from samestep.train.api.whole_set import gather_tensors
from samestep.train.trained.batch_inference import my_batches, network_of


@torch.no_grad()
def embed_texts(
    network: nn.Module,
    reading: Reading,
    texts: Sequence[Text],
    world: World,
    batch_size: int,
    compute: torch.dtype | None = None,
) -> Tensor:
    """Vectors [texts, dim] on the CPU of every rank. Collective."""

    def embed(numbers: Sequence[int]) -> Tensor:
        rows = [{"text_ids": ids} for ids in reading([texts[number] for number in numbers])]
        tokens = pad_tokens(rows, {STUDENT: reading})
        ids, mask = (tokens[name].to(world.device) for name in ("text_ids", "text_mask"))
        with autocast(world.device, compute):
            return vectors_of(network, ids, mask).cpu()

    mine = [batch for batch in my_batches([len(text.text) for text in texts], batch_size, world) if batch]
    vectors = torch.cat([embed(batch) for batch in mine] or [embed([0])[:0]])  # without any, still of their size
    numbers = torch.tensor([number for batch in mine for number in batch], dtype=torch.int64)
    found = gather_tensors(world, {"number": numbers, "vector": vectors})
    return found["vector"][found["number"].argsort()]


@dataclass(frozen=True)
class SampleOptions(CheckedConfig):
    """What to look for, and among what."""

    query: str | None = None
    """The query."""
    passages: Path | None = None
    """A file with a passage on each line, or a .jsonl file whose lines hold "text"; by default the passages that the
    run kept for validation."""
    top: Count = 5
    """Passages that are shown."""
    dim: Count | None = None
    """Compare only so many numbers of a vector, for a student with Matryoshka dimensions; by default all."""
    batch_size: Count = 32
    """Texts at once on a device."""

    def __post_init__(self) -> None:
        if not self.query:
            raise UserError("Give a query with --query.")


def find_passages(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each passage, the closest first, on every rank."""
    config: DistillConfig = trained.config
    data = data_of(trained)
    passages = read_prompts(options.passages) if options.passages else data.held_out.passages
    reading = open_models(config, data, world).readings[STUDENT]
    network, compute = network_of(trained, MODEL, world.device)
    texts = [Text(options.query or "", True), *(Text(passage, False) for passage in passages)]
    vectors = embed_texts(network, reading, texts, world, options.batch_size, compute)
    unit = unit_prefix(vectors, options.dim or vectors.shape[1])
    (ranked,) = rank_by_vectors(unit[:1], unit[1:], options.top)
    scores = (unit[1:] @ unit[0]).tolist()
    return [
        {
            "passage": number,
            "score": scores[number],
            "text": f"{scores[number]:.4f}  {' '.join(passages[number].split())}",
        }
        for number in ranked
    ]


def show_passages(trained: Trained, records: Sequence[Mapping[str, Json]]) -> None:
    """Print each passage after its score."""
    for record in records:
        print_text(record["text"])
