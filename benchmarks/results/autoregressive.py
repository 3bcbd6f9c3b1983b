"""The recipe `mdlm` with another objective: the same network, causal, predicts the next token. What masked diffusion is
compared with (`mdlm.py` beside this).

Every setting is that of `mdlm`, and so are data, rows, order, optimizer and average; `objective.*` has no meaning here.
A row begins with the end token, so that its first token is predicted too, and the log-likelihood is of all tokens.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import Average, Batch, Bench, Fit, Recipe, Stage, keyed_dropout
from samestep.core.config.bounds import Share
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.models.wide import wide
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.corpus import load
from samestep.recipes.mdlm.objective import nll_metrics
from samestep.recipes.mdlm.stages import describe, resolve_config


@dataclass(frozen=True)
class AutoregressiveConfig(MdlmConfig):
    """An autoregressive language model with the settings of `mdlm`."""

    model: TransformerConfig = field(default_factory=lambda: TransformerConfig(causal=True))
    """The network."""
    dropout: Share = 0.0
    """Of what attention and feed-forward parts add to the residual stream."""


def resolve(config: AutoregressiveConfig) -> AutoregressiveConfig:
    """That of `mdlm`, and causal."""
    found = resolve_config(config)
    return replace(found, model=replace(found.model, causal=True))  # type: ignore[return-value]


def make_network(config: AutoregressiveConfig) -> Transformer:
    """The network of `mdlm`, causal, and with dropout where that is asked for."""
    network = Transformer(config.model)
    if config.dropout:
        for block in network.transformer.blocks:
            for layer in (block.attn_out, block.ff_out):
                layer.dropout = nn.Dropout(config.dropout)
                layer.register_forward_hook(lambda layer, given, found: layer.dropout(found))
        keyed_dropout(network)
    return network


def build(bench: Bench) -> Fit:
    """The network, fitted to the next token."""
    config: AutoregressiveConfig = bench.config
    text = load(config.data)
    text.check_fits(config.model.vocab_size, config.model.embeddings, config.model.max_sequence_length)
    start = text.tokenizer.vocabulary.eos
    learner = bench.learner(lambda: make_network(config))

    def loss(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"nll": row_nats(network, batch["tokens"], batch["length"], start)}

    return Fit(
        learner,
        bench.feed(text.train, count=count),
        loss,
        validation=bench.evaluation_feed(text.validation, count=count),
        derive=lambda found: nll_metrics(found["nll"], text.validation_bytes_per_token),
        average=Average(learner, config.ema_decay) if config.ema_decay else None,
    )


def count(batch: Batch) -> dict[str, Tensor]:
    """The weight of a row, and its tokens, the unit of speed."""
    return {"nll": batch["length"], "tokens": batch["length"]}


def row_nats(network: nn.Module, tokens: Tensor, length: Tensor, start: int) -> Tensor:
    """The negative log-likelihood of each row in nats, its first token included."""
    given = torch.cat((torch.full_like(tokens[:, :1], start), tokens[:, :-1]), 1)
    logits = wide(network(given))
    nats = cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
    is_real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    return torch.where(is_real, nats, 0.0).sum(1)


recipe = Recipe(
    config=AutoregressiveConfig,
    stages=lambda config: [
        Stage("pretrain", build, validate=Fit.validate, best=("val/bits_per_byte", "min"), unit="tokens")
    ],
    presets=PRESETS,
    aliases={"data_dir": "data.path"},
    describe=describe,
    resolve=resolve,
    networks=lambda config: {"model": lambda: make_network(config)},
)
