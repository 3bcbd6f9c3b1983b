"""`samestep sample RUN --query TEXT`: the passages that the student finds for a query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.output import print_text
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import Text, data_of
from samestep.recipes.distill.embedding import embed_texts
from samestep.recipes.distill.models import MODEL, open_models
from samestep.recipes.distill.objective import unit_prefix
from samestep.recipes.distill.retrieval_metrics import rank_by_vectors
from samestep.recipes.distill.rows import STUDENT
from samestep.train.trained.batch_inference import network_of


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
        """Refuse what cannot be, before the model is opened."""
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
