"""Frozen networks: the same on every rank, kept as they were at the first launch, and refused when they changed."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import LORA, bench_of, new_folder
from samestep import UserError
from samestep.checkpoint.store import Store
from samestep.core.json_files import read_json, write_json
from samestep.data.loading import Batch
from samestep.parallel.wrap import local
from samestep.train.api.bench import Bench
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.frozen import Frozen
from samestep.train.learner.learner import Learner
from samestep.world.world import World
from toys import NOT_SHARDED, Case, Net, Points, feed_of, in_worlds, made, on_ranks, rate

POINTS = Points(13)


def network() -> nn.Module:
    return made(Net)


def output(net: object) -> Tensor:
    assert callable(net)
    return net(POINTS.x, POINTS.tokens)


def train(world: World, learner: Learner, reference: Frozen) -> None:
    """A few updates whose loss uses the reference."""

    def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with reference.inference() as frozen:
            before = frozen(batch["x"], batch["tokens"])
        now = module(batch["x"], batch["tokens"])
        assert torch.equal(reference(batch["x"], batch["tokens"]), before), "also between forward and backward"
        return {"error": (now - batch["y"]).square().sum(1) + (now - before).square().sum(1)}

    feed = feed_of(POINTS, world, 5, 2, 3)
    for step in range(3):
        learner.update(feed[step], loss)


def a_learner_and_a_frozen_network_of_the_same_weights_have_one_hash(world: World, strategy: str) -> None:
    bench = bench_of(world, strategy)
    plain, adapted = bench.learner(network, rate=rate), bench.learner(network, name="adapted", rate=rate, lora=LORA)
    frozen = {name: bench.frozen(given, name=name) for name, given in (("a", network), ("b", plain), ("c", adapted))}
    wanted = content_hash(network().state_dict())
    for thing in (plain, adapted, *frozen.values()):
        assert thing.weights_hash() == wanted
    train(world, plain, frozen["b"])
    train(world, adapted, frozen["c"])
    assert plain.weights_hash() != wanted and adapted.weights_hash() == wanted, "that of its base"
    assert {each.weights_hash() for each in frozen.values()} == {wanted}


def a_copy_of_what_came_from_a_file_is_read_again(world: World, strategy: str) -> None:
    folder = new_folder(world)
    source = folder / "first.pt"
    if world.is_main:
        torch.save(made(Net, 4).state_dict(), source)
    world.barrier()
    for resumed in (False, True):
        bench = bench_of(world, strategy, folder=folder, resumed=resumed, init_from=str(source))
        reference = bench.frozen(bench.learner(network, rate=rate))
        bench.first_weights.check_source_used(is_last=True)
        assert torch.equal(output(reference), output(made(Net, 4)))
        bench = bench_of(world, strategy, folder=folder / "adapted", resumed=resumed, init_from=str(source))
        learner = bench.learner(network, rate=rate, lora=LORA)
        bench.first_weights.check_source_used(is_last=True)
        with learner.adapters_off() as module:
            assert torch.equal(output(module), output(made(Net, 4))), "so is a base"
    assert not (folder / "run/artifacts").exists(), "nothing is stored for it"
    for number, sentence in enumerate(("is not the one that this run was started with", "first.pt does not exist")):
        world.barrier()
        if world.is_main:
            source.unlink() if number else torch.save(made(Net, 5).state_dict(), source)
        world.barrier()
        bench = bench_of(world, strategy, folder=folder, resumed=True, init_from=str(source))
        with pytest.raises(UserError, match=rf"the frozen copy 'reference' of learner 'model' .*{sentence}"):
            bench.frozen(bench.learner(network, rate=rate))


def a_base_out_of_another_run_is_stored(world: World, strategy: str) -> None:
    folder = new_folder(world)
    other = bench_of(world, strategy, folder=folder / "other")
    model = other.learner(lambda: made(Net, 4), rate=rate)
    if world.is_main:
        write_json(other.rundir.config, {"recipe": "toy", "config": {}})
    store = Store(other.rundir.checkpoints("fit"), world)
    checkpoint = store.save(1, {"model": model}, {"learners": {"model": {"state": "model"}}})
    hidden = folder / checkpoint.name
    for number, source in enumerate((other.rundir.path, checkpoint)):
        for resumed in (False, True):
            bench = bench_of(world, strategy, folder=folder / str(number), resumed=resumed, init_from=str(source))
            with bench.learner(network, rate=rate, lora=LORA).adapters_off() as module:
                assert torch.equal(output(module), output(made(Net, 4)))
            world.barrier()
            if world.is_main:  # gone at the resume, as after a save of that run
                hidden.rename(checkpoint) if resumed else checkpoint.rename(hidden)
            world.barrier()
        assert (folder / f"{number}/run/artifacts/fit/base_model.safetensors").exists()


def it_is_placed_and_named_by_one_hash(world: World, strategy: str) -> None:
    bench = bench_of(world, strategy)
    frozen = {
        "module": bench.frozen(network(), name="module"),
        "sharded": bench.frozen(network, name="sharded", shard=True),
    }
    assert bench.frozen_networks.hashes == {
        f"frozen/{name}": content_hash(network().state_dict()) for name in ("module", "sharded")
    }
    for net in frozen.values():
        assert torch.equal(output(net), output(network()))
        assert not output(net).requires_grad
        with net.inference() as module:
            assert not any(part.training for part in module.modules())
            assert not any(p.requires_grad for p in module.parameters())
    with frozen["sharded"].inference() as module:
        held = sum(world.gather(sum(local(p).numel() for p in module.parameters())))
        assert held == sum(p.numel() for p in network().parameters())
    half = bench.frozen(network, name="half", dtype="bfloat16")
    assert output(half).dtype == torch.float64, "a proof is in float64"
    with pytest.raises(UserError, match="two frozen networks are called 'half'"):
        bench.frozen(network, name="half")


def a_copy_has_the_first_weights_for_ever(world: World, strategy: str) -> None:
    folder, first = new_folder(world), output(network()).detach()
    for resumed in (False, True):
        for sharded in (False, True):
            bench = bench_of(world, strategy, folder=folder / str(sharded), resumed=resumed)
            learner = bench.learner(network, rate=rate)
            if resumed:
                spoil(learner)  # as before its checkpoint is loaded
            reference = bench.frozen(learner, shard=sharded)
            assert torch.equal(output(reference), first)
            spoil(learner, 0.5)
            train(world, learner, reference)
            assert torch.equal(output(reference), first)
    bench = bench_of(world, strategy, folder=folder / "given")
    learner = bench.learner(network(), rate=rate)
    if strategy == "fsdp":
        with pytest.raises(UserError, match=r"give bench.learner a function that builds it"):
            bench.frozen(learner)
    else:
        assert torch.equal(output(bench.frozen(learner)), first)
    given = network()
    bench.learner(given, rate=rate, name="other")
    with pytest.raises(UserError, match="is the same network that learner 'other' trains"):
        bench.frozen(given, name="same")
    train(world, learner, bench.frozen(network, name="teacher"))
    with pytest.raises(UserError, match="is a copy of the first weights of learner 'model', which has been trained"):
        bench.frozen(learner, name="late")


@torch.no_grad()
def spoil(learner: Learner, value: float = float("nan")) -> None:
    for parameter in learner.saved_parameters().values():
        local(parameter).fill_(value)


def a_policy_with_adapters_is_its_own_reference(world: World, strategy: str) -> None:
    folder = new_folder(world)
    bench = bench_of(world, strategy, folder=folder)
    policy = bench.learner(network, rate=rate, lora=LORA)
    train(world, policy, bench.frozen(policy))
    assert not (folder / "run/artifacts").exists(), "nothing is stored for it"
    with policy.inference() as module:
        assert not torch.equal(output(module), output(network()))
    with policy.adapters_off() as module:
        assert torch.equal(output(module), output(network()))


def a_policy_that_begins_with_adapters_keeps_a_copy_of_them(world: World, strategy: str) -> None:
    folder = new_folder(world)
    if world.is_main:
        from peft import LoraConfig, get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            settings = LoraConfig(r=2, lora_alpha=6, target_modules=["first", "last"], init_lora_weights=False)
            get_peft_model(copy.deepcopy(network()), settings).save_pretrained(folder / "adapters")  # type: ignore[arg-type]
    world.barrier()
    for resumed in (False, True):
        bench = bench_of(world, strategy, folder=folder, resumed=resumed, init_from=str(folder / "adapters"))
        policy = bench.learner(network, rate=rate, lora=LORA)
        reference = bench.frozen(policy)
        if not resumed:
            with policy.inference() as module:
                first = output(module)
            assert not torch.equal(first, output(network()))
        else:
            spoil(policy, 0.5)
        train(world, policy, reference)
        torch.testing.assert_close(output(reference), first, rtol=1e-12, atol=1e-12)
        with policy.inference() as module:
            assert not torch.allclose(output(module), first)


def what_changed_or_is_gone_is_refused_by_all_ranks(world: World, strategy: str) -> None:
    folder = new_folder(world)
    bench = bench_of(world, strategy, folder=folder)
    bench.frozen(network, name="teacher")
    bench.frozen(bench.learner(network, rate=rate))
    bench.learner(network, rate=rate, name="policy", lora=LORA)

    def again() -> Bench:
        return bench_of(world, strategy, folder=folder, resumed=True)

    def other() -> nn.Module:
        changed = made(Net)
        with torch.no_grad():
            changed.get_parameter("last.bias")[1] += 1e-6
        return changed

    again().frozen(network, name="teacher", shard=True)
    with pytest.raises(UserError, match="the frozen network 'teacher' is not the one that this run was started with"):
        again().frozen(other, name="teacher")
    again().learner(network, rate=rate, name="policy", lora=LORA)
    with pytest.raises(UserError, match="the base of learner 'policy' is not the one that this run was started with"):
        again().learner(other, rate=rate, name="policy", lora=LORA)
    world.barrier()
    if world.is_main:
        (folder / "run/artifacts/fit/frozen_reference.safetensors").unlink()
    world.barrier()
    bench = again()
    with pytest.raises(UserError, match=r"frozen_reference.safetensors is gone, which holds a copy"):
        bench.frozen(bench.learner(network, rate=rate))


@in_worlds(NOT_SHARDED)
def rank_0_reads_for_all_where_no_disk_is_shared(world: World, strategy: str) -> None:
    own = new_folder(world) / str(world.rank)
    if world.is_main:
        own.mkdir()
        torch.save(made(Net, 4).state_dict(), own / "teacher.pt")
    for resumed in (False, True):
        bench = bench_of(world, strategy, folder=own, resumed=resumed, shared=False)
        teacher = bench.frozen(network, name="teacher", source=own / "teacher.pt")
        assert torch.equal(output(teacher), output(made(Net, 4)))
        learner = bench.learner(network, rate=rate)
        reference = bench.frozen(learner)
        assert torch.equal(output(reference), output(network()))
    with pytest.raises(UserError, match="cannot be sharded, because not all ranks see the run directory"):
        bench.frozen(network, name="large", shard=True)
    assert world.is_main or read_json(own / "run/first_launch.json") is None


CASES: list[Case] = [
    it_is_placed_and_named_by_one_hash,
    a_learner_and_a_frozen_network_of_the_same_weights_have_one_hash,
    a_copy_has_the_first_weights_for_ever,
    a_copy_of_what_came_from_a_file_is_read_again,
    a_base_out_of_another_run_is_stored,
    a_policy_with_adapters_is_its_own_reference,
    a_policy_that_begins_with_adapters_keeps_a_copy_of_them,
    what_changed_or_is_gone_is_refused_by_all_ranks,
    rank_0_reads_for_all_where_no_disk_is_shared,
]

test_on_ranks = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")(on_ranks(CASES))


def test_one_changed_bit_is_another_hash() -> None:
    tensors = {"w": torch.randn(3, 5), "n": torch.arange(4), "half": torch.randn(7).bfloat16(), "none": torch.empty(0)}
    before = content_hash(tensors)
    for name in ("w", "n", "half"):
        other = {**tensors, name: tensors[name].clone()}
        assert content_hash(other) == before
        other[name].view(torch.uint8)[(0,) * tensors[name].ndim] ^= 1
        assert content_hash(other) != before, name
    assert content_hash({**tensors, "w": tensors["w"].reshape(5, 3)}) != before
    assert content_hash({**tensors, "w": tensors["w"].flip(0)}) != before
