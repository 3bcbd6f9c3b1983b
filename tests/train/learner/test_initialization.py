"""Initial weights follow from the seed and the names alone: the same in any mode, and never all of them on a rank."""

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.build import ParameterInit
from samestep.parallel.wrap import full_tensor, wrap
from samestep.train.api.bench import Bench
from samestep.train.learner.initialization import build_fresh
from samestep.train.learner.learner import Learner
from samestep.train.logging.console import Screen
from samestep.train.record.config import Config, Distributed
from samestep.world.world import World
from toys import Net, Points, close, error, feed_of, made, run_on_ranks, weights_of

SHAPE = TransformerConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, mlp_hidden_size=24, vocab_size=37)
pytestmark = pytest.mark.timeout(900)


def network() -> Transformer:
    return Transformer(SHAPE)


class Tied(Net):
    """A head that shares its weight with the embedding, a frozen part, and a bias of fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.table.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def init_parameter(self, name: str, weight: Tensor) -> None:
        assert name != "tied.weight", "one tensor under two names comes once"
        weight.uniform_(0.9, 1.1) if name == "norm.weight" else nn.init.normal_(weight, std=0.5)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return super().forward(self.frozen(x), tokens) + self.tied(self.first(x)).sum(1, keepdim=True)


def learner(
    world: World,
    make: Callable[[], nn.Module] | nn.Module,
    strategy: str = "ddp",
    dtype: str = "float32",
    name: str = "model",
    seed: int = 5,
) -> Learner:
    config = Config(seed=seed, distributed=Distributed(strategy=strategy, dtype=dtype))  # type: ignore[arg-type]
    bench = Bench(world, config, RunDir(Path("nowhere")), "fit", Screen(False))
    return bench.learner(make, name=name, rate=lambda update: 0.1)


def fresh(make: Callable[[], nn.Module] = network, **settings: object) -> dict[str, Tensor]:
    """The first weights in a lone process."""
    return learner(World.single(), make, **settings).weights()  # type: ignore[arg-type]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(full_tensor(one[name]), full_tensor(other[name])) for name in one
    )


def trained(world: World, strategy: str) -> Learner:
    """Two updates of the tied network."""
    found = learner(world, Tied, strategy)
    for micro_batches in feed_of(Points(16), world, 8, 2, steps=2):
        found.update(micro_batches, error)
    return found


def on_ranks(file: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    wanted = torch.load(file)
    torch.manual_seed(world.rank)  # what was drawn before does not matter, not even if it differs
    for strategy in ("ddp", "fsdp"):
        for make in (network, Tied):
            before = torch.get_rng_state()
            found = learner(world, make, strategy)
            assert torch.equal(torch.get_rng_state(), before), "torch's generator is left as it was"
            assert equal(found.weights(), wanted[make.__name__]), (strategy, make)
        held = set() if strategy == "fsdp" else {name for name, _ in Tied().named_parameters()}
        assert set(found.replicated_parameters()) == held, "the tied one under one name"
        close(weights_of(trained(world, strategy)), wanted["trained"], tolerance=1e-4)
    world.leave()


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_they_are_the_same_bit_for_bit_at_any_world_size(tmp_path: Path, nproc: int) -> None:
    tied = trained(World.single(), "ddp").weights()
    assert torch.equal(tied["table.weight"], tied["tied.weight"])
    torch.save({"network": fresh(), "Tied": fresh(Tied), "trained": tied}, tmp_path / "wanted.pt")
    run_on_ranks(on_ranks, nproc, tmp_path / "wanted.pt", logs=tmp_path / "logs")


@pytest.mark.gpu
def test_a_gpu_begins_with_the_same() -> None:
    before = torch.cuda.get_rng_state()
    found = learner(World.single("cuda"), network).weights()
    assert all(torch.equal(found[name].cpu(), value) for name, value in fresh().items())
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_seed_learner_and_parameter_each_make_a_difference() -> None:
    first = fresh()
    assert equal(first, fresh())
    drawn = [name for name in first if "norm" not in name and "ln_f" not in name]
    for other in (fresh(seed=6), fresh(name="judge"), fresh(seed=-5)):
        assert not any(torch.equal(first[name], other[name]) for name in drawn)
    heads = [first[f"transformer.blocks.{block}.{part}.weight"] for block in (0, 1) for part in ("q_proj", "attn_out")]
    scaled = [head / head.std() for head in heads]
    for number, one in enumerate(scaled):
        for other in scaled[:number]:
            assert abs(float((one * other).mean())) < 0.3, "of one shape, and nothing alike"


def test_what_was_drawn_before_makes_none() -> None:
    first = fresh()
    torch.manual_seed(8)
    torch.randn(100)
    before = torch.get_rng_state()

    def seeded() -> Transformer:
        torch.manual_seed(1)
        return network()

    assert equal(first, fresh())
    assert equal(first, fresh(seeded))
    assert torch.equal(torch.get_rng_state(), before)


def test_other_types_begin_with_the_same_numbers() -> None:
    first = fresh()
    for dtype in ("float64", "bfloat16"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = fresh(dtype=dtype)
        assert {value.dtype for value in found.values()} == {getattr(torch, dtype)}
        assert all(torch.equal(found[name], value.to(found[name].dtype)) for name, value in first.items())


def test_statistics_are_as_configured() -> None:
    shape = TransformerConfig(d_model=128, n_layers=8, n_heads=4, mlp_hidden_size=256, vocab_size=300, init_std=0.03)
    found = fresh(lambda: Transformer(shape))
    for name, value in found.items():
        if "norm" in name or "ln_f" in name:
            assert bool((value == 1).all())
            continue
        residual = ".blocks." in name and name.endswith(("attn_out.weight", "ff_out.weight"))
        std = 0.03 / 4 if residual else 0.03
        assert float(value.std()) == pytest.approx(std, rel=0.03), name
        assert abs(float(value.mean())) < 5 * std / value.numel() ** 0.5, name


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that torch's allocator had given out at any moment, all of them counted."""
    gc.collect()  # or what an earlier call left to the collector is freed, and counted, in this one
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        held = work()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    del held
    return peak


def test_a_network_that_has_its_weights_keeps_them() -> None:
    def made() -> Transformer:
        network = Transformer(SHAPE)
        network.has_weights = True  # type: ignore[assignment]
        return network

    module, fill = build_fresh(made, 5, "model")
    assert fill is None and not any(parameter.is_meta for parameter in module.parameters())


WIDE = TransformerConfig(d_model=128, n_layers=8, n_heads=4, mlp_hidden_size=256, vocab_size=300)


def takes_little_memory() -> None:
    world = World.join(device="cpu", timeout=60)

    def sharded(shape: TransformerConfig) -> object:
        module, fill = build_fresh(lambda: Transformer(shape), 5, "model")
        return wrap(module, world, "fsdp", None, fill)

    sharded(SHAPE)  # whatever torch keeps for good
    sizes = [value.numel() * 4 for value in Transformer(WIDE).parameters()]
    part = sum(sizes) / world.size
    taken = peak_of(lambda: sharded(WIDE))
    assert 0.95 * part < taken < part + 3 * max(sizes) < 0.5 * sum(sizes), (taken, sizes)
    assert peak_of(lambda: wrap(Transformer(WIDE), world, "fsdp", None)) > sum(sizes), (
        "a network that is built in full shows"
    )
    world.leave()


def test_no_rank_of_a_sharded_run_holds_the_whole(tmp_path: Path) -> None:
    run_on_ranks(takes_little_memory, 3, logs=tmp_path)


class Moments(nn.Module):
    """With buffers, in its state and not, whose values only its own code knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("scale", torch.full((2,), 3.0))
        self.register_buffer("angles", torch.arange(3.0), persistent=False)

    def init_parameter(self, name: str, weight: Tensor) -> None:
        weight.normal_()


class Running(Moments):
    def __init__(self) -> None:
        super().__init__()
        del self.angles


@pytest.mark.parametrize("make", [Moments, Running])
def test_buffers_have_the_values_that_the_network_gave_them(make: type[Moments]) -> None:
    found = learner(World.single(), make)
    with found.inference() as module:
        assert torch.equal(module.get_buffer("scale"), torch.full((2,), 3.0))
        if make is Moments:
            assert torch.equal(module.get_buffer("angles"), torch.arange(3.0))
    assert bool((found.weights()["weight"] != 0).all())
    assert torch.equal(found.weights()["weight"], fresh(Running)["weight"]), "by its name, not by how it was built"


class LooksAtNumbers(Net):
    """Cannot be built without memory, as it needs a number that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = float(torch.linspace(0, 1, 3)[1])


@pytest.mark.parametrize("make", [Net, LooksAtNumbers])
def test_other_networks_are_built_out_of_the_runs_seed(make: type[Net]) -> None:
    torch.manual_seed(3)
    found = fresh(make)
    after = torch.get_rng_state()
    assert equal(found, made(make, seed=3).state_dict())
    torch.manual_seed(3)
    make()
    assert torch.equal(torch.get_rng_state(), after), "the next network goes on from there"
    assert not isinstance(make(), ParameterInit)


class DrawsAndLooks(Tied):
    """Offers to draw, and cannot be built without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = float(torch.linspace(0, 1, 3)[1])


def test_what_needs_memory_to_be_built_is_drawn_all_the_same() -> None:
    assert equal(fresh(DrawsAndLooks), fresh(Tied))


def test_a_network_that_is_given_is_taken_as_it_is() -> None:
    assert equal(fresh(made(Tied)), made(Tied).state_dict())  # type: ignore[arg-type]


class Forgetful(Net):
    def init_parameter(self, name: str, weight: Tensor) -> None:
        if name != "last.weight":
            weight.zero_()


def test_a_parameter_without_values_is_refused() -> None:
    with pytest.raises(UserError, match=r"init_parameter left values of 'last.weight' undefined; fill all of `weight`"):
        fresh(Forgetful)


def test_a_run_that_began_with_other_weights_resumes_with_its_own(tmp_path: Path) -> None:
    older = learner(World.single(), made(Tied, seed=9))
    newer = learner(World.single(), Tied)
    feed = feed_of(Points(16), World.single(), 8, 2, steps=4)
    for step in range(2):
        older.update(feed[step], error)
    store = Store(tmp_path, World.single())
    store.save(2, {"model": older}, {})
    assert not equal(older.weights(), newer.weights())
    found = store.newest()
    assert found is not None
    store.load(found, {"model": newer})
    for step in (2, 3):
        older.update(feed[step], error)
        newer.update(feed[step], error)
    assert equal(older.weights(), newer.weights())
