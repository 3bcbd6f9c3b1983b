"""Log-probabilities of completions against the plain formula, row by row, with their gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from language_toys import TOKENS, logits_of, native, of_transformers
from samestep.core.errors import UserError
from samestep.models import log_probs
from samestep.models.log_probs import completion_log_probs, last_logits, token_log_probs
from samestep.parallel.precision import autocast, cast_weights

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "native": native,
    "native, tied": lambda: native(tied_head=True),
    "llama": lambda: of_transformers("llama"),
    "gpt2": lambda: of_transformers("gpt2"),
    "gemma2": lambda: of_transformers("gemma2", "eager"),
}


class Given(NamedTuple):
    prompt: Tensor
    prompt_mask: Tensor
    completion: Tensor
    completion_mask: Tensor

    def row(self, number: int) -> tuple[list[int], list[int]]:
        return (
            self.prompt[number][self.prompt_mask[number]].tolist(),
            self.completion[number][self.completion_mask[number]].tolist(),
        )


def given(prompt_side: str = "left", completion_side: str = "right", fill: int = 0) -> Given:
    random = torch.Generator().manual_seed(4)
    masks = [
        torch.arange(width) >= width - lengths[:, None] if side == "left" else torch.arange(width) < lengths[:, None]
        for width, lengths, side in (
            (5, torch.tensor([5, 1, 3]), prompt_side),
            (4, torch.tensor([2, 4, 0]), completion_side),
        )
    ]
    rows = []
    for mask in masks:
        tokens = torch.full(mask.shape, fill)
        tokens[mask] = torch.randint(TOKENS, (int(mask.sum()),), generator=random)
        rows += [tokens, mask]
    return Given(*rows)


def by_hand(network: nn.Module, rows: Given, temperature: float) -> tuple[Tensor, Tensor]:
    """Each row alone, without padding, by the plain formulas: of all real tokens, one after the other."""
    found, entropies = [], []
    for number in range(3):
        prompt, completion = rows.row(number)
        if not completion:
            continue
        logits = logits_of(network, torch.tensor([prompt + completion]))[0, len(prompt) - 1 : -1] / temperature
        logs = logits.log_softmax(-1)
        found.append(logs.gather(1, torch.tensor(completion)[:, None])[:, 0])
        entropies.append(-(logs.exp() * logs).sum(-1))
    return torch.cat(found), torch.cat(entropies)


@pytest.mark.parametrize("at_once", [2**24, 3 * TOKENS], ids=["at once", "in parts"])
@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_gradients_are_those_of_the_plain_formula(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probs, "AT_ONCE", at_once)
    network, rows = NETWORKS[name]().double(), given()
    wanted, wanted_entropy = by_hand(network, rows, 0.7)
    weight = torch.linspace(-1, 2, len(wanted), dtype=torch.float64)
    ((wanted * weight).sum() + (wanted_entropy * weight.flip(0)).sum()).backward()
    expected = {name: parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad()

    found = completion_log_probs(network, *rows, temperature=0.7, entropy=True)
    assert found.entropy is not None
    torch.testing.assert_close(found.log_probs[rows.completion_mask], wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.entropy[rows.completion_mask], wanted_entropy, rtol=0, atol=1e-9)
    assert not found.log_probs[~rows.completion_mask].any()
    real = rows.completion_mask
    ((found.log_probs[real] * weight).sum() + (found.entropy[real] * weight.flip(0)).sum()).backward()
    for name, parameter in network.named_parameters():
        # transformers' norms of Gemma are in float32, also their gradients
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-6 if "norm" in name else 1e-9)


@pytest.mark.parametrize("completion_side", ["left", "right"])
@pytest.mark.parametrize("prompt_side", ["left", "right"])
@torch.no_grad()
def test_padding_makes_no_difference(prompt_side: str, completion_side: str) -> None:
    network = native().double()
    usual, other = given(), given(prompt_side, completion_side, fill=-100)
    assert [usual.row(number) for number in range(3)] == [other.row(number) for number in range(3)]
    wanted, found = (completion_log_probs(network, *rows).log_probs for rows in (usual, other))
    torch.testing.assert_close(found[other.completion_mask], wanted[usual.completion_mask], rtol=0, atol=1e-12)


def test_the_logits_of_the_whole_batch_are_never_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_probs, "AT_ONCE", 3 * TOKENS)
    network, rows = native(), given()
    head, sizes = network.get_output_embeddings(), []
    forward = head.forward
    head.forward = lambda hidden: (sizes.append(hidden.numel() // 16), forward(hidden))[1]  # type: ignore[method-assign]
    completion_log_probs(network, *rows).log_probs.sum().backward()
    assert sizes == [3] * 8, "12 positions in four parts, and again in the backward pass"
    assert head.forward.__name__ == "<lambda>", "what was there before is put back"


class Odd(nn.Module):
    """Changes its logits in a way that nobody announced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = native()

    def get_output_embeddings(self) -> nn.Module:
        return self.inner.get_output_embeddings()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens) * 2


class Headless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = native()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens) * 2


@pytest.mark.parametrize("build", [Odd, Headless])
@torch.no_grad()
def test_a_network_may_do_more_than_its_head(build: Callable[[], nn.Module]) -> None:
    network, rows = build().double(), given()
    found = completion_log_probs(network, *rows).log_probs[rows.completion_mask]
    torch.testing.assert_close(found, by_hand(network, rows, 1.0)[0], rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_completion_without_a_prompt_shows() -> None:
    rows = given()
    rows.prompt_mask[0] = False
    found = completion_log_probs(native(), *rows).log_probs
    assert found[0, :2].isnan().tolist() == [True, False]
    assert found[1:].isfinite().all()


def test_compiled_it_gives_the_same() -> None:
    network, rows = native().double(), given()
    compiled = torch.compile(
        lambda *args: completion_log_probs(network, *args).log_probs, backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(*rows), completion_log_probs(network, *rows).log_probs)


def left_padded() -> tuple[Tensor, Tensor]:
    """Tokens and where they are real: all, some, and the last alone."""
    tokens = torch.randint(TOKENS, (3, 9), generator=torch.Generator().manual_seed(2))
    return tokens, torch.arange(9) >= torch.tensor([[0], [3], [8]])


@pytest.mark.parametrize("kind", NETWORKS)
def test_last_logits_are_those_of_each_row_alone(kind: str) -> None:
    network, (tokens, real) = NETWORKS[kind]().double(), left_padded()
    found = last_logits(network, tokens, real)
    wanted = torch.cat([logits_of(network, row[own][None])[:, -1] for row, own in zip(tokens, real)])
    same_with_gradients(network, found, wanted)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_last_logits_are_those_of_rows_with_a_mask(kind: str) -> None:
    """As models of transformers are usually called with rows that are padded in front."""
    network, (tokens, real) = NETWORKS[kind]().double(), left_padded()
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    wanted = network(tokens, attention_mask=real, position_ids=positions).logits[:, -1]
    same_with_gradients(network, last_logits(network, tokens, real), wanted)


def same_with_gradients(network: nn.Module, found: Tensor, wanted: Tensor) -> None:
    close = {"rtol": 1e-5, "atol": 1e-5}  # norms of transformers compute in float32
    torch.testing.assert_close(found, wanted, **close)
    weights = list(network.parameters())
    gradients = [torch.autograd.grad(logits.square().sum(), weights) for logits in (found, wanted)]
    torch.testing.assert_close(*gradients, **close)


def test_last_logits_need_no_mask_and_one_position_of_the_head() -> None:
    network, (tokens, real) = of_transformers("llama"), left_padded()
    options: list[set[str]] = []
    shapes: list[tuple[int, ...]] = []
    network.register_forward_pre_hook(lambda _, args, given: options.append(set(given)), with_kwargs=True)
    head: Any = network.get_output_embeddings()
    head.register_forward_hook(lambda _, args, logits: shapes.append(tuple(logits.shape)))
    last_logits(network, tokens, real)
    assert options == [{"use_cache"}]
    assert shapes == [(3, 1, TOKENS)]


def test_last_logits_compiled() -> None:
    network, rows = native().double(), left_padded()
    compiled = torch.compile(lambda *args: last_logits(network, *args), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*rows), last_logits(network, *rows))


def test_logits_in_half_precision_are_measured_in_single() -> None:
    logits, tokens = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    found = token_log_probs(logits.bfloat16(), tokens, 0.5)
    wanted = (logits.bfloat16().float() / 0.5).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(token_log_probs(logits, tokens, 0.0), token_log_probs(logits, tokens, 1.0))


def test_a_head_in_many_parts_sums_its_gradient_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    prompt, completion = torch.randint(TOKENS, (32, 2)), torch.randint(TOKENS, (32, 60))
    all_real = [torch.ones_like(tokens, dtype=torch.bool) for tokens in (prompt, completion)]
    gradients = []
    for compute, at_once in ((None, 2**24), (torch.bfloat16, TOKENS)):  # all at once, and one position at a time
        monkeypatch.setattr(log_probs, "AT_ONCE", at_once)
        network = native().float()
        with cast_weights(network, compute), autocast(torch.device("cpu"), compute):
            found = completion_log_probs(network, prompt, all_real[0], completion, all_real[1])
        found.log_probs.sum().backward()
        gradients.append(network.get_output_embeddings().weight.grad)
    apart = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert apart < 0.01, apart


class Halving(nn.Module):
    """Changes its logits in place."""

    def __init__(self) -> None:
        super().__init__()
        self.network = native()

    def get_output_embeddings(self) -> nn.Module:
        return self.network.get_output_embeddings()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens).mul_(0.5)


def test_logits_that_are_changed_in_place_are_noticed() -> None:
    network, rows = Halving(), given()
    found = completion_log_probs(network, *rows).log_probs[rows.completion_mask]
    torch.testing.assert_close(found, by_hand(network.network, rows, temperature=2.0)[0])


@pytest.mark.parametrize("prompt_side", ["left", "right"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_without_padding_values_and_gradients_are_the_same(kind: str, prompt_side: str) -> None:
    network, rows, found = of_transformers(kind), given(prompt_side), []
    for padding_free in (False, True):
        network.zero_grad()
        measured = completion_log_probs(network, *rows, temperature=0.7, entropy=True, padding_free=padding_free)
        assert measured.entropy is not None
        (measured.log_probs.sum() + 0.5 * measured.entropy.square().sum()).backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        found.append((measured.log_probs.detach(), measured.entropy.detach(), gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_a_native_network_needs_padding() -> None:
    with pytest.raises(UserError, match="cannot be called without padding; use a model of transformers"):
        completion_log_probs(native(), *given(), padding_free=True)


def test_a_network_whose_layers_read_over_the_end_of_a_text_needs_padding() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.Lfm2Config(
        **sizes, num_key_value_heads=2, num_hidden_layers=2, layer_types=["conv", "full_attention"]
    )
    with pytest.raises(UserError, match="some of its layers would mix texts"):
        completion_log_probs(transformers.Lfm2ForCausalLM(config), *given(), padding_free=True)
