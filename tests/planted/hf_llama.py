"""Not a bug: transformers' own Llama, which computes its norms in float32 whatever it is given."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from planted.parts import VERIFY, Batch, Small
from samestep import Bench, Fit, Recipe, Stage

SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "initializer_range": 0.2}


def texts(count: int) -> list[Batch]:
    """Sums that go around, as tokens."""
    return [{"tokens": torch.arange(9) * (1 + number % 5) % 17} for number in range(count)]


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    tokens = batch["tokens"]
    logits = module(input_ids=tokens[:, :-1], use_cache=False).logits
    return {"nll": cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)}


def build(bench: Bench) -> Fit:
    config = LlamaConfig(**SIZES, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False)
    learner = bench.learner(LlamaForCausalLM(config))
    return Fit(learner, bench.feed(texts(40)), loss, validation=bench.evaluation_feed(texts(11)))


# Made here, so that workers find this module, and with it transformers, imported.
stage = Stage("fit", build, validate=Fit.validate)
recipe = Recipe(config=Small, stages=lambda config: [stage], presets={"verify": VERIFY})
