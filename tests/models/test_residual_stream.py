"""Reading and exchanging what leaves a block: the native network, and the families of transformers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from language_toys import TOKENS, native, of_transformers
from samestep.core.errors import UserError
from samestep.models.residual_stream import ResidualStream
from toys import default_dtype, made

FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"]
LAYERS = 3
POSITIONS = torch.tensor([2, 6, 0])


def network_of(kind: str) -> nn.Module:
    """In float64; library models compute some parts in float32."""
    with default_dtype(torch.float64):
        if kind == "native":
            return native(n_layers=LAYERS)
        named = "n_layer" if kind == "gpt2" else "num_hidden_layers"
        attention = "eager" if kind == "gemma2" else "sdpa"  # transformers has no other for its soft caps
        return of_transformers(kind, attention, **{named: LAYERS}).double()


@pytest.fixture(params=["native", *FAMILIES])
def stream(request: pytest.FixtureRequest) -> ResidualStream:
    return ResidualStream(network_of(request.param))


def tokens(rows: int = 3, columns: int = 7) -> Tensor:
    return torch.randint(0, TOKENS, (rows, columns), generator=torch.Generator().manual_seed(5))


def close(actual: Tensor, wanted: Tensor, network: nn.Module) -> None:
    tolerance = 1e-10 if not hasattr(network, "generate") else 2e-5
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


def own_logits(network: Any, given: Tensor) -> Tensor:
    out = network(given)
    return out if isinstance(out, Tensor) else out.logits


@pytest.mark.parametrize("kind", FAMILIES)
def test_it_reads_what_transformers_calls_the_next_hidden_state(kind: str) -> None:
    network: Any = network_of(kind)
    hidden = network(tokens(), output_hidden_states=True).hidden_states
    stream = ResidualStream(network)
    for layer in range(LAYERS - 1):
        close(stream.leaving(tokens(), layer), hidden[layer + 1], network)
    norm = network.base_model.ln_f if kind == "gpt2" else network.base_model.norm
    close(norm(stream.leaving(tokens(), LAYERS - 1)), hidden[LAYERS], network)


def test_it_reads_the_output_of_a_native_block() -> None:
    network = network_of("native")
    found: list[Tensor] = []
    for block in network.transformer.blocks:
        block.register_forward_hook(lambda block, args, output: found.append(output))
    network(tokens())
    stream = ResidualStream(network)
    for layer, wanted in enumerate(found[:LAYERS]):
        assert torch.equal(stream.leaving(tokens(), layer), wanted)


def test_later_blocks_are_not_computed(stream: ResidualStream) -> None:
    calls: list[int] = []
    for number, block in enumerate(stream.blocks):
        block.register_forward_hook(lambda block, args, output, number=number: calls.append(number))
    stream.head.register_forward_hook(lambda *_: calls.append(-1))
    stream.leaving(tokens(), 1)
    assert calls == [0, 1]


def test_what_was_read_put_back_gives_the_same_logits(stream: ResidualStream) -> None:
    wanted = own_logits(stream.network, tokens())[torch.arange(3), POSITIONS]
    for layer in range(LAYERS):
        values = stream.leaving(tokens(), layer)[torch.arange(3), POSITIONS]
        again = stream.logits(tokens(), POSITIONS, layer=layer, values=values)
        close(again, wanted, stream.network)
        other = stream.logits(tokens(), POSITIONS, layer=layer, values=values.roll(1, 0))
        assert ((other - wanted).abs().amax(1) > 1e-3).all(), "another value, another prediction"


def test_logits_are_those_of_the_network_before_and_after_an_exchange(stream: ResidualStream) -> None:
    wanted = own_logits(stream.network, tokens())
    stream.logits(tokens(), POSITIONS, layer=1, values=torch.zeros(3, stream.width, dtype=torch.float64))
    assert torch.equal(own_logits(stream.network, tokens()), wanted)
    close(stream.logits(tokens()), wanted, stream.network)
    close(stream.logits(tokens(), POSITIONS), wanted[torch.arange(3), POSITIONS], stream.network)


def test_a_failed_call_leaves_the_network_as_it_was(stream: ResidualStream) -> None:
    wanted = own_logits(stream.network, tokens())
    with pytest.raises(RuntimeError):
        stream.logits(tokens(), POSITIONS, layer=1, values=torch.zeros(9, 1, 7))
    assert torch.equal(own_logits(stream.network, tokens()), wanted)


def test_the_gradient_of_an_exchanged_value(stream: ResidualStream) -> None:
    """Against finite differences along one direction."""
    values = stream.leaving(tokens(), 1)[torch.arange(3), POSITIONS].detach().requires_grad_()
    stream.logits(tokens(), POSITIONS, layer=1, values=values).square().sum().backward()
    along = torch.randn(values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    computes_norms_in_float32 = hasattr(stream.network, "generate") and not hasattr(stream.network.base_model, "ln_f")
    step = 1e-2 if computes_norms_in_float32 else 1e-5
    ends = [
        stream.logits(tokens(), POSITIONS, layer=1, values=values.detach() + sign * step * along).square().sum()
        for sign in (1, -1)
    ]
    assert values.grad is not None
    torch.testing.assert_close((values.grad * along).sum(), (ends[0] - ends[1]) / (2 * step), rtol=2e-3, atol=1e-6)


def test_in_a_context_only_the_exchanged_column_is_computed(stream: ResidualStream) -> None:
    """The same values and gradients as by whole rows, twice in one context; not where a window is shorter."""
    columns = 7 if getattr(stream.network.config, "sliding_window", None) is None else 2
    given = tokens(3, columns)
    positions = torch.tensor([1, columns - 1, 0])
    context = stream.read_context(given)
    widths: list[int] = []
    stream.blocks[-1].register_forward_hook(lambda block, args, output: widths.append(args[0].shape[1]))
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(3, stream.width, generator=generator, dtype=torch.float64, requires_grad=True)
        whole = stream.logits(given, positions, layer=1, values=values)
        quick = stream.logits(given, positions, layer=1, values=values, context=context)
        close(quick, whole, stream.network)
        wanted, found = (torch.autograd.grad(logits.square().sum(), values)[0] for logits in (whole, quick))
        close(found / wanted.abs().max(), wanted / wanted.abs().max(), stream.network)
    assert widths == [columns, 1] * 2
    if columns == 2:
        assert stream.read_context(tokens(3, 3)) is None


def test_a_mixture_of_one_token_is_that_token(stream: ResidualStream) -> None:
    one_hot = torch.nn.functional.one_hot(tokens(), TOKENS).double()
    assert torch.equal(stream.embed_mixture(one_hot), stream.embed(tokens()))
    close(stream.logits(stream.embed(tokens())), own_logits(stream.network, tokens()), stream.network)
    halves = (one_hot[:, :1] + one_hot[:, 1:2]) / 2
    wanted = stream.embed(tokens())[:, :2].mean(1, keepdim=True)
    torch.testing.assert_close(stream.embed_mixture(halves), wanted)


def test_the_cache_gives_what_whole_rows_give(stream: ResidualStream) -> None:
    """Longer than the windows of Gemma 2 and 3, values and gradients."""
    vectors = stream.embed(tokens(2, 9)).detach().requires_grad_()
    whole = stream.logits(vectors)[:, 3:]
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (wanted,) = torch.autograd.grad((whole * weights).sum(), vectors)
    cache = stream.new_cache()
    parts = [stream.next_logits(vectors[:, :4], cache)]
    parts += [stream.next_logits(vectors[:, column : column + 1], cache) for column in range(4, 9)]
    pieces = torch.stack(parts, 1)
    close(pieces, whole, stream.network)
    (found,) = torch.autograd.grad((pieces * weights).sum(), vectors)
    scale = wanted.abs().max()
    close(found / scale, wanted / scale, stream.network)
    assert wanted[:, :4].abs().min() > 0, "gradients reach the first columns through the cache"


def test_padding_on_the_right_changes_nothing(stream: ResidualStream) -> None:
    padded = torch.cat((tokens(), torch.zeros(3, 2, dtype=torch.int64)), 1)
    close(stream.leaving(padded, 1)[:, :7], stream.leaving(tokens(), 1), stream.network)
    close(stream.logits(padded, POSITIONS), stream.logits(tokens(), POSITIONS), stream.network)


def test_a_copy_reads_its_own_blocks() -> None:
    holder = nn.Module()
    holder.model = network_of("native")
    holder.stream = ResidualStream(holder.model)
    other = copy.deepcopy(holder)
    with torch.no_grad():
        for parameter in holder.model.parameters():
            parameter.zero_()
    assert other.stream.leaving(tokens(), 1).abs().sum() > 0
    values = other.stream.leaving(tokens(), 1)[torch.arange(3), POSITIONS]
    again = other.stream.logits(tokens(), POSITIONS, layer=1, values=values)
    torch.testing.assert_close(again, other.stream.logits(tokens(), POSITIONS))


def test_it_works_after_a_cast_and_a_build_without_memory() -> None:
    with torch.device("meta"):
        network = native(n_layers=LAYERS)
    stream = ResidualStream(network)
    network.to_empty(device="cpu").double()
    network.load_state_dict(network_of("native").state_dict())
    wanted = ResidualStream(network_of("native")).leaving(tokens(), 2)
    assert torch.equal(stream.leaving(tokens(), 2), wanted)


@pytest.mark.parametrize(
    "kind", ["gpt2", pytest.param("native", marks=pytest.mark.long), pytest.param("gemma3", marks=pytest.mark.long)]
)
def test_it_can_be_compiled(kind: str) -> None:
    network = network_of(kind).float()
    stream = ResidualStream(network)

    def function(given: Tensor, values: Tensor) -> Tensor:
        return stream.logits(given, POSITIONS, layer=1, values=values + stream.leaving(given, 1)[:, 0])

    values = torch.randn(3, stream.width, generator=torch.Generator().manual_seed(1))
    wanted = function(tokens(), values)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens(), values), wanted, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_a_layer_that_is_not_there_is_refused(stream: ResidualStream) -> None:
    for layer in (-1, LAYERS):
        with pytest.raises(UserError, match=f"layers 0 to 2, and no layer {layer}"):
            stream.leaving(tokens(), layer)


def test_a_network_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="the blocks of Linear cannot be read; use CausalTransformer, or GPT-2"):
        ResidualStream(made(lambda: nn.Linear(2, 2)))


def test_a_text_that_is_too_long_is_refused(stream: ResidualStream) -> None:
    with pytest.raises(UserError, match="at most 64 tokens, and a text has 65"):
        stream.leaving(tokens(1, 65), 0)
