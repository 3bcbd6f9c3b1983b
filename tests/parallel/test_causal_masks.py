"""A causal mask made of constants gives way to `is_causal`; every other mask stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from samestep.parallel.causal_masks import drop_causal_masks
from samestep.parallel.compiling import LossCompiler

X = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(0))


def attend(x: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x, attn_mask=mask)


def triangle(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[-2], device=x.device)
    return places[:, None] >= places[None]


def causal(x: Tensor) -> Tensor:
    return attend(x, triangle(x).expand(2, 1, -1, -1))


def causal_by_position(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x, triangle(x), 0.0, False)


def causal_and_of_one_text(x: Tensor) -> Tensor:
    """As transformers has it for texts that stand behind each other, of which there is one here."""
    places = torch.arange(x.shape[-2])
    texts = (torch.diff(places, prepend=places[:1] - 1) != 1).cumsum(0)
    return attend(x, triangle(x) & texts[:, None].__eq__(texts[None]))


def causal_recomputed(x: Tensor) -> Tensor:
    mask = triangle(x)
    found: Tensor = checkpoint(attend, x, mask, use_reentrant=False)  # type: ignore[assignment]
    return found


def windowed(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[-2])
    return attend(x, triangle(x) & (places[:, None] - places[None] < 3))


def of_the_input(x: Tensor) -> Tensor:
    return attend(x, triangle(x) & (x[0, 0, :, 0] > -100.0))


def random(x: Tensor) -> Tensor:
    return attend(x, triangle(x) & (torch.rand(x.shape[-2]) >= 0.0))


def written_to(x: Tensor) -> Tensor:
    mask = triangle(x).clone()
    mask[0] = True
    return attend(x, mask)


def written_to_by_a_view(x: Tensor) -> Tensor:
    mask = triangle(x).clone()
    mask[2].fill_(True)
    return attend(x, mask)


def written_to_by_an_operator(x: Tensor) -> Tensor:
    mask = triangle(x).clone()
    row = mask[0]
    row |= True
    return attend(x, mask)


def drawn_in_place(x: Tensor) -> Tensor:
    return attend(x, triangle(x) & (torch.empty(x.shape[-2]).uniform_() >= 0.0))


def of_one_element(x: Tensor) -> Tensor:
    return attend(x, torch.ones(1, 1, 1, 1, dtype=torch.bool))


def added(x: Tensor) -> Tensor:
    return attend(x, torch.zeros(6, 6).masked_fill(~triangle(x), -3.0))


def cross(x: Tensor) -> Tensor:
    mask = torch.arange(4)[:, None] >= torch.arange(6)[None]
    return scaled_dot_product_attention(x[:, :, :4], x, x, attn_mask=mask)


OTHERS = [windowed, of_the_input, random, drawn_in_place, of_one_element, added, cross]
OTHERS += [written_to, written_to_by_a_view, written_to_by_an_operator]


def compile_counting(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    counts: list[int] = []

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        counts.append(drop_causal_masks(module))
        compiled: Callable[..., Any] = torch._dynamo.lookup_backend("aot_eager")(module, inputs)
        return compiled

    return torch.compile(function, backend=backend), counts


@pytest.mark.parametrize("function", [causal, causal_by_position, causal_and_of_one_text, causal_recomputed])
def test_a_causal_mask_is_dropped(function: Callable[[Tensor], Tensor]) -> None:
    compiled, counts = compile_counting(function)
    x = X.clone().requires_grad_()
    compiled(x).square().sum().backward()
    expected = X.clone().requires_grad_()
    function(expected).square().sum().backward()
    assert counts == [1]
    assert x.grad is not None and expected.grad is not None
    torch.testing.assert_close(x.grad, expected.grad)


@pytest.mark.parametrize(
    "function",
    OTHERS,
    ids=lambda f: f.__name__,
)
def test_another_mask_stays(function: Callable[[Tensor], Tensor]) -> None:
    compiled, counts = compile_counting(function)
    torch.testing.assert_close(compiled(X), function(X))
    assert sum(counts) == 0


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: nn.Module = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, vocab_size=60, use_cache=False)
        )
    return network


def test_a_network_of_transformers_has_no_mask_when_compiled() -> None:
    network, tokens = llama(), torch.arange(24).view(2, 12)
    compiled, counts = compile_counting(lambda tokens: network(tokens).logits)
    torch.testing.assert_close(compiled(tokens), network(tokens).logits)
    assert counts == [2]


def test_packed_rows_keep_their_mask() -> None:
    network, tokens = llama(), torch.arange(24).view(2, 12)
    places = torch.arange(6).repeat(2)[None]
    compiled, counts = compile_counting(lambda tokens, places: network(tokens, position_ids=places).logits)
    torch.testing.assert_close(compiled(tokens, places), network(tokens, position_ids=places).logits)
    assert counts == [0]


def test_compiled_losses_drop_them() -> None:
    seen: list[Any] = []

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        calls = [node for node in module.graph.nodes if node.target is scaled_dot_product_attention]
        seen.extend(node.kwargs["is_causal"] for node in calls)
        return module.forward

    LossCompiler(backend)(lambda network, batch: causal(batch))(nn.Identity(), X)
    assert seen == [True]
