"""Checkpoints of several ranks: sharded at one world size and loaded at another, replicated, and on separate disks."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, RankedPart, must_succeed, same_bits, values
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from samestep.checkpoint.across_ranks import is_disk_shared
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import verify
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.world.world import World

SHAPES = {"0.weight": (7, 5), "0.bias": (7,), "1.weight": (1, 7), "1.bias": (1,)}  # uneven, and one row for all ranks


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1))


class Sharded:
    """A model sharded by FSDP2 with its optimizer, as training has them, every value set from its name."""

    def __init__(self, world: World, known: bool) -> None:
        self.model = build()
        if world.control is not None:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (world.size,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.25, betas=(0.5, 0.75))
        self.model(torch.ones(2, 5)).sum().backward()
        self.optimizer.step()
        if known:
            self.set_known()

    def state_dict(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": get_optimizer_state_dict(self.model, self.optimizer)}

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])

    def named(self) -> dict[str, torch.Tensor]:
        state = self.state_dict()
        moments = state["optimizer"]["state"]
        return {
            **state["model"],
            **{f"{name}.{m}": moments[name][m] for name in SHAPES for m in ("exp_avg", "exp_avg_sq")},
        }

    @torch.no_grad()
    def set_known(self) -> None:
        for name, tensor in self.named().items():
            full = values(name, tuple(tensor.shape))
            if isinstance(tensor, DTensor):
                full = distribute_tensor(full, tensor.device_mesh, tensor.placements)
            tensor.copy_(full)

    def check_known(self) -> None:
        for name, tensor in self.named().items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            assert same_bits(full, values(name, tuple(tensor.shape))), name
        assert self.optimizer.param_groups[0]["lr"] == 0.25


def save_sharded(folder: Path) -> None:
    world = World.join(device="cpu")
    wide = distribute_tensor(values("wide", (3, 8)), init_device_mesh("cpu", (world.size,)), [Shard(1)])
    learner = Sharded(world, known=True)
    Store(folder, world).save(10, {"learner": learner, "wide": Part({"x": wide})}, {"config": {"lr": 0.25}})
    world.leave()


def load_sharded(folder: Path) -> None:
    world = World.join(device="cpu")
    wide = distribute_tensor(torch.zeros(3, 8), init_device_mesh("cpu", (world.size,)), [Shard(1)])
    learner, part = Sharded(world, known=False), Part({"x": wide})
    store = Store(folder, world)
    checkpoint = store.newest()
    assert checkpoint is not None
    assert checkpoint.about == {"config": {"lr": 0.25}}
    store.load(checkpoint, {"learner": learner, "wide": part})
    learner.check_known()
    assert same_bits(part.state["x"].full_tensor(), values("wide", (3, 8)))
    world.leave()


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_sharded_state_loads_at_another_world_size(tmp_path: Path, before: int, after: int) -> None:
    must_succeed(save_sharded, before, tmp_path / "store", logs=tmp_path / "save")
    must_succeed(load_sharded, after, tmp_path / "store", logs=tmp_path / "load")
    files = {path.name for path in (tmp_path / "store" / "step_00000010").iterdir()}
    assert {f"__{rank}_0.distcp" for rank in range(before)} <= files, "every rank writes its own shards"

    alone = World.single()
    learner, part = Sharded(alone, known=False), Part({"x": torch.zeros(3, 8)})
    store = Store(tmp_path / "store", alone)
    checkpoint = store.newest()
    assert checkpoint is not None
    store.load(checkpoint, {"learner": learner, "wide": part})
    learner.check_known()
    assert same_bits(part.state["x"], values("wide", (3, 8)))

    weights = read_tensors(checkpoint.path, "learner/model")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == SHAPES
    assert all(same_bits(tensor, values(name, SHAPES[name])) for name, tensor in weights.items())


def save_replicated(folder: Path) -> None:
    world = World.join(device="cpu")
    tensors = {f"w{i}": values(f"w{i}", (50, 40)) for i in range(4)}
    part = RankedPart({"tensors": tensors, "rank": world.rank}, own={"rank": world.rank, "draw": [0.1 + world.rank]})
    Store(folder, world).save(1, {"part": part}, {})
    world.leave()


def load_replicated(folder: Path) -> None:
    world = World.join(device="cpu")
    part = RankedPart({"tensors": {f"w{i}": torch.zeros(50, 40) for i in range(4)}, "rank": None}, own=None)
    store = Store(folder, world)
    checkpoint = store.newest()
    assert checkpoint is not None
    store.load(checkpoint, {"part": part})
    assert all(same_bits(tensor, values(name, (50, 40))) for name, tensor in part.state["tensors"].items())
    assert part.state["rank"] == 0, "JSON values are rank 0's"
    assert part.loaded == [{"rank": 0, "draw": [0.1]}, {"rank": 1, "draw": [1.1]}], "one part a rank that saved"
    world.leave()


def test_replicated_state_is_written_once_and_split_over_ranks(tmp_path: Path) -> None:
    must_succeed(save_replicated, 2, tmp_path / "store", logs=tmp_path / "save")
    must_succeed(load_replicated, 3, tmp_path / "store", logs=tmp_path / "load")
    written = [path.stat().st_size for path in (tmp_path / "store" / "step_00000001").glob("*.distcp")]
    assert len(written) == 2
    one_copy = 4 * 50 * 40 * 4
    assert one_copy <= sum(written) < 1.5 * one_copy
    assert max(written) < 0.75 * one_copy, "each rank writes a share"


def save_in_a_thread(folder: Path) -> None:
    world = World.join(device="cpu")
    store = Store(folder, world.with_own_messages("thread", world.timeout))
    snapshot = store.take_snapshot(1, {"part": Part({"w": values("w", (400, 400))})}, {})
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: store.commit(snapshot, store.write(snapshot)))
        for number in range(20):  # meanwhile the run communicates over its own group
            assert world.gather(number + world.rank) == [number, number + 1]
        assert done.result(timeout=30) == folder / "step_00000001"
    world.leave()


def test_writing_and_committing_may_be_done_by_a_thread(tmp_path: Path) -> None:
    must_succeed(save_in_a_thread, 2, tmp_path / "store", logs=tmp_path / "logs")
    assert same_bits(read_tensors(tmp_path / "store" / "step_00000001", "part")["w"], values("w", (400, 400)))


def own_disk(folder: Path) -> None:
    world = World.join(device="cpu")
    mine = folder / f"disk_{world.rank}"
    assert is_disk_shared(folder, world)
    assert not is_disk_shared(mine, world, timeout=0.2)
    store = Store(mine, world, shared=False)
    tensors = {"a": values("a", (3, 4), torch.bfloat16), "b": values("b", ()), "none": torch.zeros(0, 2)}
    tensors["flags"] = values("flags", (5,)) > 0
    store.save(1, {"part": RankedPart({"t": tensors, "n": 5}, own=world.rank)}, {"metric": 1.5})

    blank = RankedPart({"t": {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, "n": 0}, own=None)
    store.remove_leftovers()
    checkpoint = store.newest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert checkpoint.metric == 1.5
    store.load(checkpoint, {"part": blank})
    assert blank.state["n"] == 5
    assert blank.loaded == [0, 1]
    assert all(same_bits(blank.state["t"][name], tensor) for name, tensor in tensors.items())

    sharded = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (world.size,)), [Shard(0)])
    with pytest.raises(UserError, match="sharded training needs a run directory on a disk that every rank sees"):
        store.save(2, {"part": Part({"x": sharded})}, {})
    world.leave()


def test_without_a_shared_disk_rank_0_saves_and_broadcasts(tmp_path: Path) -> None:
    must_succeed(own_disk, 2, tmp_path, logs=tmp_path / "logs")
    assert verify(tmp_path / "disk_0" / "step_00000001") is None
    assert not (tmp_path / "disk_1").exists()
    assert not list(tmp_path.glob(".probe*"))
    assert not list((tmp_path / "disk_0").glob(".probe*"))
