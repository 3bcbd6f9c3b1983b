"""Encoders as networks: padding, gradients, compiling, and training on ranks."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import bench_of, new_folder
from encoder_toys import NAMES, TEXTS, backbone_folder, padded
from samestep.models.sentence_encoder import SentenceEncoder, with_projection
from samestep.models.sentence_folder import EncoderSource, open_encoder
from samestep.models.sentence_modules import POOLINGS, Pooling
from samestep.parallel.wrap import full_tensor, local
from samestep.world.world import World
from toys import WORLDS, Case, Proofs


@cache
def source_of(kind: str) -> EncoderSource:
    return open_encoder(backbone_folder(kind, Path(mkdtemp()) / kind), dtype="float64").with_projection(12)


@cache
def encoder_of(kind: str) -> SentenceEncoder:
    torch.manual_seed(5)
    return source_of(kind).load()


@pytest.mark.parametrize("kind", NAMES)
def test_padding_changes_nothing(kind: str) -> None:
    tokenizer, encoder = source_of(kind).tokenizer, encoder_of(kind)
    together = encoder(*padded(tokenizer, TEXTS, 30))
    for row, text in zip(together, TEXTS):
        for more in (0, 9):
            tokens, mask = padded(tokenizer, [text], 30, more)
            torch.testing.assert_close(encoder(tokens, mask)[0], row, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_of_padding_is_a_number_and_so_is_its_gradient(pooling: str) -> None:
    source = source_of("bert")
    encoder = SentenceEncoder(source.load().transformer, Pooling(16, [pooling]), source.load().head)
    tokens, mask = padded(source.tokenizer, TEXTS, 30)
    alone = encoder(tokens, mask)
    mask[1] = 0
    vectors = encoder(tokens, mask)
    assert vectors.isfinite().all()
    torch.testing.assert_close(vectors[[0, 2, 3]], alone[[0, 2, 3]], rtol=0, atol=1e-12)
    vectors.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in encoder.transformer.parameters())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_whatever_stands_at_padding_is_not_pooled(pooling: str) -> None:
    tokens, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    wanted = Pooling(3, [pooling])(tokens[1:, :2], mask[1:, :2])
    tokens[1, 2:] = torch.inf
    torch.testing.assert_close(Pooling(3, [pooling])(tokens, mask)[1:], wanted)


@pytest.mark.parametrize("kind", NAMES)
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    encoder = source_of(kind).load().train()
    encoder(*padded(source_of(kind).tokenizer, TEXTS, 30))[:, :6].sum().backward()
    # The bias of keys moves no softmax, so its gradient is zero but for rounding: being there is what counts.
    assert not [name for name, weight in encoder.named_parameters() if weight.grad is None]


@pytest.mark.parametrize("kind", ["bert", "mpnet", "qwen2"])
def test_it_compiles_as_one_graph(kind: str) -> None:
    encoder = encoder_of(kind)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    tokens, mask = padded(source_of(kind).tokenizer, TEXTS, 30)
    torch.testing.assert_close(compiled(tokens, mask), encoder(tokens, mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "xlm-roberta", "qwen2"])
def test_attention_goes_through_scaled_dot_product(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    attend = nn.functional.scaled_dot_product_attention

    def recorded(query: Tensor, *args: Any, **options: Any) -> Tensor:
        calls.append(query)
        return attend(query, *args, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", recorded)
    encoder_of(kind)(*padded(source_of(kind).tokenizer, TEXTS, 30))
    assert len(calls) == 2, "one for each layer"


def test_a_projection_is_drawn_at_a_fitting_scale() -> None:
    torch.manual_seed(0)
    encoder = with_projection(source_of("bert").load(), 400)
    encoder.initialise()
    assert encoder.dim == 400
    names = [type(part).__name__ for part in encoder.head]
    assert names[-6:] == ["Normalize", "Dense", "LayerNorm", "Dense", "LayerNorm", "Normalize"]
    spread = encoder.get_parameter(f"head.{len(names) - 5}.linear.weight").detach().std()
    assert float(spread) == pytest.approx(12**-0.5, rel=0.05)


def the_same_vectors_and_weights_on_ranks(world: World, strategy: str) -> None:
    folder = new_folder(world)
    if world.is_main:
        backbone_folder("mpnet", folder / "model")
    world.gather(None)
    source = open_encoder(folder / "model", world=world)
    bench = bench_of(world, strategy)
    learner = bench.learner(source.with_projection(12).network)
    alone = bench_of(World.single(), "lone").learner(source.with_projection(12).network)
    for name, weight in alone.weights().items():
        assert torch.equal(full_tensor(learner.weights()[name].detach()), weight), name
    if strategy == "fsdp":
        total = sum(weight.numel() for weight in alone.parameters())
        assert sum(world.gather(sum(local(weight).numel() for weight in learner.parameters()))) == total
    tokens, mask = padded(source.tokenizer, TEXTS, 30)
    with learner.inference() as network, alone.inference() as single:
        torch.testing.assert_close(network(tokens, mask), single(tokens, mask), rtol=0, atol=1e-12)


def a_frozen_encoder_on_ranks(world: World, strategy: str) -> None:
    folder = new_folder(world)
    if world.is_main:
        backbone_folder("qwen2", folder / "model")
    world.gather(None)
    source = open_encoder(folder / "model", world=world)
    bench = bench_of(world, strategy)
    teacher = bench.frozen(source.network, name="teacher", shard=strategy == "fsdp")
    encoder = source.load().double()
    tokens, mask = padded(source.tokenizer, TEXTS, 30)
    torch.testing.assert_close(teacher(tokens, mask), encoder(tokens, mask), rtol=0, atol=1e-12)
    file = folder / "other.pt"
    if world.is_main:
        torch.save({name: weight / 2 for name, weight in encoder.state_dict().items()}, file)
    world.gather(None)
    half = bench.frozen(source.network, name="half", source=file)
    encoder.load_state_dict({name: weight / 2 for name, weight in encoder.state_dict().items()})
    torch.testing.assert_close(half(tokens, mask), encoder(tokens, mask), rtol=0, atol=1e-12)


CASES = [the_same_vectors_and_weights_on_ranks, a_frozen_encoder_on_ranks]


@pytest.mark.parametrize(("nproc", "strategy"), WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_on_ranks(proofs: Proofs, case: Case, nproc: int, strategy: str) -> None:
    proofs.check(case, nproc, strategy)


@pytest.mark.parametrize("modes", [("mean",), ("cls", "mean"), ("mean", "cls"), ("lasttoken", "max", "cls")])
def test_several_poolings_keep_their_order(modes: tuple[str, ...]) -> None:
    assert Pooling.read(Pooling(8, modes).settings, "here").modes == modes
