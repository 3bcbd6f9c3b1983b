"""Weights are cast for a use of the network and are themselves again afterwards; gradients are theirs."""

import copy
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.blocks import checkpoint_activations
from samestep.parallel.compiling import LossCompiler
from samestep.parallel.precision import autocast, cast_for_good, cast_weights, with_cast_weights
from samestep.parallel.wrap import wrap
from samestep.train.learner.learner import Learner
from samestep.world.world import World
from toys import SETTINGS, Net, Points, feed_of, made, rate

BF16 = torch.bfloat16
TOKENS = torch.arange(21).reshape(3, 7) % 11


@pytest.fixture(autouse=True)
def float32():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


class Tied(nn.Module):
    """Uses one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.small = nn.Parameter(torch.ones(8, dtype=torch.float16))
        self.whole = nn.Parameter(torch.ones(8, dtype=torch.int64), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens) * self.small.to(self.table.weight.dtype))


def test_inside_they_are_of_the_type_and_outside_themselves() -> None:
    network = made(Tied)
    weight = network.table.weight
    with cast_weights(network, BF16):
        assert network.table.weight.dtype == BF16
        assert network.head.weight is network.table.weight
        assert network.small.dtype == BF16, "as FSDP casts it"
        assert network.whole.dtype == torch.int64
    with suppress(ZeroDivisionError), cast_weights(network, BF16):
        raise ZeroDivisionError
    assert network.table.weight is network.head.weight is weight
    assert dict(network.named_parameters())["table.weight"] is weight


def test_the_gradient_is_that_of_the_weight_itself() -> None:
    network, by_hand = made(Tied), made(Tied)

    def loss(network: nn.Module, tokens: Tensor) -> Tensor:
        return network(tokens).float().square().sum()

    with_cast_weights(loss, BF16)(network, TOKENS).backward()
    by_hand.to(BF16)
    by_hand.small.data = by_hand.small.data.half()
    loss(by_hand, TOKENS).backward()
    assert network.table.weight.grad.dtype == torch.float32
    # Two uses: their gradients are added in bf16 in both.
    assert torch.equal(network.table.weight.grad, by_hand.table.weight.grad.float())


def transformer() -> nn.Module:
    return Transformer(TransformerConfig(d_model=16, n_layers=3, n_heads=2, mlp_hidden_size=32, vocab_size=11))


@pytest.mark.parametrize("mode", ["full", "selective", "2"])
@pytest.mark.parametrize("compiled", [False, True])
def test_blocks_are_computed_again_with_the_weights_of_the_forward_pass(mode: str, compiled: bool) -> None:
    plain = made(transformer)
    again = copy.deepcopy(plain)
    checkpoint_activations(again, mode)
    for network in (plain, again):
        parallel = wrap(network, World.single(), "ddp", BF16)
        parallel.compiler = LossCompiler("eager") if compiled else None
        with autocast(torch.device("cpu"), BF16):
            total = parallel.call(lambda network, tokens: network(tokens).float().square().sum(), TOKENS)
        total.backward()
    for mine, theirs in zip(again.parameters(), plain.parameters()):
        assert torch.equal(mine.grad, theirs.grad), "to the bit"


class Normed(nn.Module):
    """Has running statistics, which stay in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_keeps_its_type(training: bool) -> None:
    network = made(Normed).train(training)
    parallel = wrap(network, World.single(), "ddp", BF16)
    with autocast(torch.device("cpu"), BF16):
        output = parallel.call(lambda network, x: network(x), torch.ones(6, 4))
    output.float().sum().backward()
    assert network.norm.weight.grad.dtype == torch.float32
    frozen = made(Normed).eval()
    cast_for_good(frozen, BF16)
    assert (frozen.first.weight.dtype, frozen.norm.weight.dtype) == (BF16, torch.float32)
    with autocast(torch.device("cpu"), BF16):
        frozen(torch.ones(6, 4))


def test_every_loss_has_its_own_count_of_compilations() -> None:
    """torch gives up after 8 of one code object, and the code around all losses is one."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    parallel = wrap(made(lambda: nn.Linear(2, 1)), World.single(), "ddp", BF16)
    parallel.compiler = LossCompiler(backend)
    for number in range(12):
        function = eval(f"lambda network, x: network(x).sum() * {number}")
        for _ in range(2):
            parallel.call(function, torch.ones(3, 2, dtype=BF16))
    assert len(compiled) == 12


def test_the_residual_stream_is_of_the_type() -> None:
    seen = []
    network = made(transformer)
    for block in network.transformer.blocks:
        block.register_forward_hook(lambda block, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    parallel = wrap(network, World.single(), "ddp", BF16)
    with autocast(torch.device("cpu"), BF16):
        parallel.call(lambda network, tokens: network(tokens), TOKENS)
    assert seen == [(BF16, BF16)] * 3


def test_validating_again_and_again_compiles_once() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        compiled.append(graph)
        return graph.forward

    def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"error": (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)}

    torch._dynamo.reset()
    parallel = wrap(made(Net), World.single(), "ddp", BF16)
    parallel.compiler = LossCompiler(backend)
    learner = Learner(parallel, World.single(), rate, SETTINGS, mixed_precision="bf16")
    feed = feed_of(Points(32), World.single(), 8, 8, steps=3)
    for step in range(3):
        learner.update(feed[step], error)
        with learner.inference():
            learner.measure(error, feed[step].batches[0])
    assert len(compiled) == 2, "once for training, once for validation"
