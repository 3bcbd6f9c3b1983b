"""Vectors of many texts outside of training, shared out over the ranks: the same at any number of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep import EncoderSource, World
from samestep.parallel.build import materialize
from samestep.parallel.precision import autocast
from samestep.recipes.distill.data import Text
from samestep.recipes.distill.models import vectors_of
from samestep.recipes.distill.rows import STUDENT, Reading, pad_tokens
from samestep.train.api.whole_set import gather_tensors
from samestep.train.learner.initialization import build_fresh
from samestep.train.trained.batch_inference import my_batches


def first_network(source: EncoderSource, seed: int, name: str, device: torch.device) -> nn.Module:
    """The network of a source as a run builds it: with its published weights, or with those drawn for `name`."""
    module, fill = build_fresh(source.network, seed, name)
    return materialize(module, device, fill).eval()


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
            found = vectors_of(network, ids, mask).cpu()
        return found.to(torch.promote_types(found.dtype, torch.float32))

    mine = [batch for batch in my_batches([len(text.text) for text in texts], batch_size, world) if batch]
    vectors = torch.cat([embed(batch) for batch in mine] or [embed([0])[:0]])  # without any, still of their size
    numbers = torch.tensor([number for batch in mine for number in batch], dtype=torch.int64)
    found = gather_tensors(world, {"number": numbers, "vector": vectors})
    return found["vector"][found["number"].argsort()]
