"""Blocks are found in the networks of any library, and computing them again changes no number."""

import copy
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from samestep.core.errors import UserError
from samestep.models.causal_lm import CausalConfig, CausalTransformer
from samestep.models.residual_stream import ResidualStream
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.blocks import checkpoint_activations, find_blocks
from samestep.parallel.wrap import wrap
from samestep.world.world import World
from toys import made

TOKENS = torch.arange(21).reshape(3, 7) % 11


def own() -> nn.Module:
    return Transformer(TransformerConfig(d_model=16, n_layers=4, n_heads=2, mlp_hidden_size=32, vocab_size=11))


def causal() -> nn.Module:
    shape = CausalConfig(d_model=16, n_layers=4, n_heads=2, mlp_hidden_size=32, vocab_size=11)
    return CausalTransformer(shape)


def of_transformers() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=11, **shape))


def output_of(network: nn.Module) -> Tensor:
    output = network(TOKENS)
    return output if isinstance(output, Tensor) else output.logits


def kept_numbers(network: nn.Module) -> int:
    """How many numbers the forward pass keeps for the backward pass, which is then run."""
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        total = output_of(network).square().sum()
    total.backward()
    return sum(kept)


@pytest.mark.parametrize("make", [own, of_transformers])
def test_the_same_gradients_with_less_memory(make) -> None:
    plain = made(make)
    networks = {mode: copy.deepcopy(plain) for mode in ("full", "selective", "2")}
    before = kept_numbers(plain)
    for mode, network in networks.items():
        checkpoint_activations(network, mode)
        assert list(network.state_dict()) == list(plain.state_dict())
        assert kept_numbers(network) < (0.75 if mode == "2" else 0.5) * before
        for mine, theirs in zip(network.parameters(), plain.parameters()):
            assert torch.equal(mine.grad, theirs.grad), "to the bit"


def test_selective_does_not_compute_matrix_products_again() -> None:
    operations: dict[str, int] = {}
    for mode in ("none", "selective", "full"):
        network = made(own)
        checkpoint_activations(network, mode)
        with FlopCounterMode(display=False) as counter:
            output_of(network).square().sum().backward()
        operations[mode] = counter.get_total_flops()
    assert operations["selective"] == operations["none"] < operations["full"]


def test_weights_held_constant_stay_so() -> None:
    network = made(own)
    checkpoint_activations(network, "full")
    parallel = wrap(network, World.single(), "ddp", None)
    shift = torch.zeros(16, requires_grad=True)
    with parallel.held_constant():
        output = network.transformer.blocks[0](torch.ones(1, 3, 16) + shift, torch.ones(3, 8), torch.ones(3, 8))
    output.sum().backward()
    assert shift.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("make", [causal, of_transformers])
def test_blocks_that_never_train_are_computed_again_too(make) -> None:
    """For the gradients of what they are called with, which are the same to the bit."""
    found = {}
    for mode in ("none", "full"):
        network = made(make).requires_grad_(False)
        checkpoint_activations(network, mode)
        vectors = torch.ones(3, 7, 16).requires_grad_()
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):  # noqa: B023
            logits = ResidualStream(network).logits(vectors)
        logits.square().sum().backward()
        found[mode] = vectors.grad, sum(kept)
    assert torch.equal(found["full"][0], found["none"][0])
    assert found["full"][1] < 0.5 * found["none"][1]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("make", [causal, of_transformers])
def test_blocks_with_a_differentiable_cache_are_not_computed_again(make, trains: bool) -> None:
    found = []
    for mode in ("none", "full"):
        network = made(make).requires_grad_(trains)
        checkpoint_activations(network, mode)
        stream = ResidualStream(network)
        cache, vectors = stream.new_cache(), torch.ones(3, 3, 16).requires_grad_()
        parts = [stream.next_logits(vectors[:, [column]], cache) for column in range(3)]
        torch.stack(parts).square().sum().backward()
        assert vectors.grad.abs().sum() > 0
        found.append(vectors.grad)
    assert torch.equal(*found)


def test_a_block_is_computed_again_in_the_state_of_its_call() -> None:
    """The state is another one when the backward pass comes."""

    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(3, 3), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x) * self.scale).sin()

        def keep_state(self):
            return partial(self.scaled, self.scale)

        @contextmanager
        def scaled(self, scale: float):
            before, self.scale = self.scale, scale
            yield
            self.scale = before

    def gradient(mode: str) -> Tensor:
        network = made(lambda: nn.ModuleList(Scaling() for _ in range(2)))
        checkpoint_activations(network, mode)
        x = torch.ones(2, 3)
        for scale in (2.0, 5.0):
            for block in network:
                block.scale = scale
                x = block(x)
        x.sum().backward()
        return network[0].linear.weight.grad

    torch.testing.assert_close(gradient("full"), gradient("none"))


def test_experts_are_part_of_their_layer() -> None:
    def layer() -> nn.Module:
        return nn.ModuleDict({"experts": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(3))})

    layers = nn.ModuleList(layer() for _ in range(2))
    assert find_blocks(nn.ModuleDict({"layers": layers, "head": nn.Linear(2, 2)})) == list(layers)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="needs the blocks of Linear, but it has no list of equal modules"):
        checkpoint_activations(nn.Linear(2, 2), "full")
    with pytest.raises(
        UserError, match="must be none, full, selective, or a number n for every n-th block, not 'some'"
    ):
        checkpoint_activations(made(own), "some")
