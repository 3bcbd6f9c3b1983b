"""The causal transformer: whole rows, padded rows and incremental calls give the same logits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from language_toys import TOKENS, native
from samestep.core.errors import UserError
from samestep.models.causal_lm import CausalConfig, CausalTransformer
from samestep.parallel.build import materialize
from samestep.train.learner.initialization import build_fresh
from samestep.train.learner.lora import Lora, add_adapters, trained_names

SHAPES: list[dict[str, Any]] = [{}, {"n_kv_heads": None}, {"tied_head": True}, {"embedding_size": 32}]


def some_tokens(rows: int = 3, length: int = 9) -> Tensor:
    return torch.randint(TOKENS, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pieces", [[9], [4, 5], [1] * 9, [5, 1, 1, 2]], ids=str)
@torch.no_grad()
def test_with_a_cache_the_logits_are_the_same(shape: dict[str, Any], pieces: list[int]) -> None:
    model, tokens = native(**shape).double(), some_tokens()
    cache = model.new_cache(12)
    parts = [model(part, cache=cache) for part in tokens.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), rtol=0, atol=1e-9)
    assert cache.length == 9


@pytest.mark.parametrize("padding", ["left", "right", "inside"])
@torch.no_grad()
def test_padding_makes_no_difference(padding: str) -> None:
    model, tokens = native().double(), some_tokens()
    real = torch.ones(3, 13, dtype=torch.bool)
    free = {"left": range(4), "right": range(9, 13), "inside": (0, 3, 4, 12)}[padding]
    real[:, list(free)] = False
    padded = torch.zeros(3, 13, dtype=torch.int64)
    padded[real] = tokens.flatten()
    logits = model(padded, attention_mask=real)
    assert logits.isfinite().all(), "also of padding, which gradients may touch"
    torch.testing.assert_close(logits[real].view(3, 9, -1), model(tokens), rtol=0, atol=1e-9)


@torch.no_grad()
def test_left_padding_and_a_cache_together() -> None:
    model, tokens = native().double(), some_tokens()
    real = torch.arange(12) >= torch.tensor([3, 5, 3])[:, None]  # of the second row two real tokens are hidden
    padded = torch.cat((torch.zeros(3, 3, dtype=torch.int64), tokens), 1)
    cache = model.new_cache(12)
    for end, start in ((5, 0), (6, 5), (12, 6)):
        last = model(padded[:, start:end], attention_mask=real[:, :end], cache=cache, logits_to_keep=1)
        assert last.shape == (3, 1, TOKENS)
    torch.testing.assert_close(last[0, 0], model(tokens[:1])[0, -1], rtol=0, atol=1e-9)
    torch.testing.assert_close(last[1, 0], model(tokens[1:2, 2:])[0, -1], rtol=0, atol=1e-9)


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = native(tied_head=True), native()
    assert tied.get_output_embeddings().weight is tied.transformer.wte.weight
    assert untied.get_output_embeddings().weight is not untied.transformer.wte.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == TOKENS * 16


def test_a_tied_head_stays_tied_when_it_is_built_without_memory() -> None:
    config = native(tied_head=True).config
    blank, fill = build_fresh(lambda: CausalTransformer(config), seed=3, learner="model")
    assert next(blank.parameters()).is_meta
    model = materialize(blank, torch.device("cpu"), fill)
    assert isinstance(model, CausalTransformer)
    assert model.get_output_embeddings().weight is model.transformer.wte.weight
    assert model(some_tokens()).isfinite().all()


@pytest.mark.parametrize("tied", [False, True])
def test_its_linear_layers_get_adapters_but_not_its_head(tied: bool) -> None:
    adapted = trained_names(add_adapters(native(tied_head=tied), Lora(rank=2)))
    assert len(adapted) == 2 * 2 * 7, "two matrices for each of seven layers of two blocks"
    assert all(".blocks." in name for name in adapted)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="Leave causal at true"):
        CausalConfig(causal=False)
    model = native(max_sequence_length=8)
    cache = model.new_cache(16)
    with torch.no_grad():
        model(some_tokens(length=8), cache=cache)
        with pytest.raises(UserError, match=r"max_sequence_length=8.*has 9"):
            model(some_tokens(length=1), cache=cache)
    with pytest.raises(AssertionError, match="without gradients"):
        model(some_tokens(length=2), cache=model.new_cache(4))
    with torch.no_grad(), pytest.raises(AssertionError, match="the cache has 4 columns"):
        model(some_tokens(length=5), cache=model.new_cache(4))
