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
from samestep.train.batch_inference import in_order, my_batches
from samestep.train.learner.initialization import build_fresh


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
    mine: list[tuple[int, list[float]]] = []
    for batch in my_batches([len(text.text) for text in texts], batch_size, world):
        if not batch:
            continue
        rows = [{"text_ids": ids} for ids in reading([texts[number] for number in batch])]
        tokens = pad_tokens(rows, {STUDENT: reading})
        ids, mask = (tokens[name].to(world.device) for name in ("text_ids", "text_mask"))
        with autocast(world.device, compute):
            found = vectors_of(network, ids, mask)
        mine += zip(batch, found.cpu().tolist())
    return torch.tensor(in_order(world.gather([list(pair) for pair in mine])))
