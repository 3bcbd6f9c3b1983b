"""The stage that trains the built-in model on the texts for training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import Batch, Bench, CausalTransformer, Fit
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.language_model import LANGUAGE_MODEL, open_model
from samestep.recipes.lens.texts import TRAIN, VALIDATION
from samestep.recipes.lens.token_rows import PartRows, open_tokens
from samestep.train.learner.frozen import write_copy

PRETRAIN = "pretrain"
"""The stage."""
WEIGHTS = "model.safetensors"
"""What it leaves."""


def build_pretrain(bench: Bench) -> Fit:
    """The model, fitted to the next byte of each text."""
    config: LensConfig = bench.config
    learner = bench.learner(lambda: CausalTransformer(config.pretrain.network), name=LANGUAGE_MODEL)
    bench.banner["loss"] = "1 nats of the next byte"
    tokens = open_tokens(bench, open_model(config, bench.world))
    edge, end = int(tokens.inputs[TRAIN]), int(tokens.inputs[TRAIN]) + int(tokens.inputs[VALIDATION])

    def count(batch: Batch) -> dict[str, Tensor]:
        return {"nats": batch["length"] - 1}

    held_out = bench.evaluation_feed(PartRows(tokens, edge, end), count=count)
    return Fit(learner, bench.feed(PartRows(tokens, 0, edge), count=count), next_token_nats, validation=held_out)


def next_token_nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """How unlikely the tokens of each row are, in nats, after the first."""
    tokens = batch["tokens"].long()
    logits = network(tokens[:, :-1])
    nats = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    is_real = torch.arange(1, tokens.shape[1], device=tokens.device) < batch["length"][:, None]
    return {"nats": torch.where(is_real, nats.view_as(is_real), 0.0).sum(1)}


def keep_weights(task: Fit, bench: Bench) -> None:
    """Write the trained model for later stages. Collective."""
    write_copy(bench.artifact(WEIGHTS), task.learner.weights(), bench.world)
