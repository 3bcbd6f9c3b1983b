"""A published library's model with dropout becomes the same run however its batches are split, by one call."""

import pytest
import torch
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.train.learner.dropout import KeyedDropout, keyed_dropout
from samestep.world.world import World
from toys import close, default_dtype, feed_of, learner_of, made, weights_of

transformers = pytest.importorskip("transformers", reason="needs transformers (extra `bench`)")
LENGTH, TOKENS = 6, 11


class Sentences:
    """Rows of tokens."""

    def __init__(self, size: int) -> None:
        random = torch.Generator().manual_seed(size)
        self.tokens = torch.randint(TOKENS, (size, LENGTH), generator=random)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"tokens": self.tokens[index]}


def gpt2() -> nn.Module:
    size = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": TOKENS, "n_positions": LENGTH}
    drop = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **drop, **ends, use_cache=False))


def likelihood(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = module(batch["tokens"]).logits[:, :-1].transpose(1, 2)
    return {"nll": nn.functional.cross_entropy(logits, batch["tokens"][:, 1:], reduction="none").sum(1)}


def trained(module: nn.Module, micro: int) -> tuple[dict[str, Tensor], list[str]]:
    learner = learner_of(module.train(), World.single(), "lone")
    feed = feed_of(Sentences(20), World.single(), 8, micro, steps=3)
    for step in range(3):
        learner.update(feed[step], likelihood)
    return weights_of(learner), learner.loss_calls.rank_dependence


def test_gpt2() -> None:
    with default_dtype(torch.float64):
        keyed = keyed_dropout(made(gpt2))
        assert sum(isinstance(part, KeyedDropout) for part in keyed.modules()) == 7
        full, warnings = trained(keyed, 100)
        assert warnings == []
        for micro in (1, 3):
            close(trained(keyed_dropout(made(gpt2)), micro)[0], full, tolerance=1e-7)

        plain, warnings = trained(made(gpt2), 100)
        assert len(warnings) == 1 and "nn.Dropout in 'transformer.drop' and 4 more places draws its mask" in warnings[0]
        with pytest.raises(AssertionError, match="not close"):
            close(trained(made(gpt2), 3)[0], plain, tolerance=1e-7)
