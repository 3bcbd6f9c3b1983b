"""Tensors on a CUDA device: saved from there, also while they change, loaded there or elsewhere, over NCCL or with two
ranks on one card."""

from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, must_succeed, same_bits, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from samestep.checkpoint.background import Buffers, Saver
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.store import Store
from samestep.world.world import World

pytestmark = pytest.mark.gpu
SHAPES = {"a": (500, 300), "b": (7,), "c": (), "d": (0, 3)}


def tensors(device: str) -> dict[str, torch.Tensor]:
    found = {name: values(name, shape).to(device) for name, shape in SHAPES.items()}
    return {**found, "half": values("half", (9, 5), torch.bfloat16).to(device)}


def blank(device: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors(device).items()}


@pytest.mark.parametrize(("source", "target"), [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_between_devices(tmp_path: Path, source: str, target: str) -> None:
    store = Store(tmp_path, World.single())
    store.save(1, {"model": Part(tensors(source))}, {})
    part = Part(blank(target))
    found = store.newest()
    assert found is not None
    store.load(found, {"model": part})
    for name, tensor in tensors("cpu").items():
        assert part.state[name].device.type == target
        assert same_bits(part.state[name], tensor), name


def over_nccl(folder: Path, save: bool) -> None:
    world = World.join(device="cuda")
    assert world.backend == "nccl"
    torch.manual_seed(1 if save else 2)
    model = torch.nn.Linear(33, 5, device=world.device)
    fully_shard(model, mesh=init_device_mesh("cuda", (world.size,)))
    store = Store(folder, world)
    if save:
        store.save(1, {"model": model}, {})
    found = store.newest()
    assert found is not None
    store.load(found, {"model": model})
    weight = model.weight
    assert isinstance(weight, DTensor)
    assert weight.device.type == "cuda"
    torch.manual_seed(1)
    assert same_bits(weight.full_tensor(), torch.nn.Linear(33, 5, device=world.device).weight)
    world.leave()


def test_sharded_over_nccl(tmp_path: Path) -> None:
    must_succeed(over_nccl, 1, tmp_path / "store", True, logs=tmp_path / "save")
    must_succeed(over_nccl, 1, tmp_path / "store", False, logs=tmp_path / "load")


def two_on_one_card(folder: Path, shared: bool) -> None:
    world = World.join(device="cuda:0", backend="gloo")
    store = Store(folder if shared else folder / str(world.rank), world, shared=shared)
    store.save(1, {"model": Part(tensors("cuda"))}, {})
    part = Part(blank("cuda"))
    found = store.newest()
    assert found is not None
    store.load(found, {"model": part})
    assert all(same_bits(part.state[name], tensor) for name, tensor in tensors("cpu").items())
    world.leave()


@pytest.mark.parametrize("shared", [True, False])
def test_several_ranks_on_one_card(tmp_path: Path, shared: bool) -> None:
    must_succeed(two_on_one_card, 2, tmp_path / "store", shared, logs=tmp_path / "logs")


SOME_SECONDS = 2_000_000_000
"""GPU cycles."""


def test_copies_are_in_pinned_memory_that_is_reused() -> None:
    buffers, source = Buffers(), tensors("cuda")
    first = buffers.copy(source)
    first.wait()
    assert all(same_bits(tensor, source[name]) for name, tensor in first.tensors.items())
    assert all(tensor.device.type == "cpu" for tensor in first.tensors.values())
    assert all(tensor.is_pinned() for tensor in first.tensors.values() if tensor.numel())
    addresses = {name: tensor.data_ptr() for name, tensor in first.tensors.items()}
    assert {name: tensor.data_ptr() for name, tensor in buffers.copy(source).tensors.items()} == addresses


def test_the_host_does_not_wait_and_the_state_is_that_of_its_step(tmp_path: Path) -> None:
    live = tensors("cuda")
    with Saver(Store(tmp_path, World.single("cuda"))) as saver:
        saver.reserve({"model": Part(live)})  # memory is pinned here, which is slow
        torch.cuda._sleep(SOME_SECONDS)
        busy = torch.cuda.Event()
        busy.record()
        saver.save(1, {"model": Part(live)}, {})
        for tensor in live.values():  # the next step, queued behind the copies
            tensor.zero_()
        assert not busy.query(), "save() waited for the device"
        saver.wait()
    saved, expected = read_tensors(tmp_path / "step_00000001", "model"), tensors("cpu")
    assert all(same_bits(tensor, expected[name]) for name, tensor in saved.items())


def in_background_over_nccl(folder: Path) -> None:
    world = World.join(device="cuda")
    torch.manual_seed(1)
    model = torch.nn.Linear(33, 5, device=world.device)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cuda", (world.size,)))
    store = Store(folder, world)
    with Saver(store) as saver:
        saver.save(1, {"model": model}, {})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        saver.wait()
    found = store.newest()
    assert found is not None
    store.load(found, {"model": model})
    assert all(same_bits(model.state_dict()[name].full_tensor(), tensor) for name, tensor in expected.items())
    world.leave()


def test_sharded_over_nccl_in_the_background(tmp_path: Path) -> None:
    must_succeed(in_background_over_nccl, 1, tmp_path / "store", logs=tmp_path / "logs")
