"""Saving while training goes on: each save holds the state of its step, one save at a time, on any number of ranks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part, RankedPart, Trainee, must_succeed, run_ranks, same_bits, values

from samestep.checkpoint import across_ranks, background
from samestep.checkpoint.across_ranks import split_by_size
from samestep.checkpoint.background import Buffers, PendingSave, Saver
from samestep.checkpoint.files import damage_of
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import read_manifest, verify
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.world.world import World


class Gate:
    """Holds the saves of this rank at a phase until it is opened."""

    def __init__(self, phase: str) -> None:
        self._phase, self._open, self.reached = phase, threading.Event(), threading.Event()

    def __call__(self, phase: str) -> None:
        if phase == self._phase:
            self.reached.set()
            assert self._open.wait(60), "the gate was never opened"

    def open(self) -> None:
        self._open.set()


def overlapping(folder: Path, strategy: str) -> None:
    world = World.join(device="cpu")
    gate = Gate("staged")
    ended: list[tuple[int, bool]] = []
    trainee, own = Trainee(world, strategy), RankedPart({"step": 1}, own=[world.rank])
    trainee.step()
    saved = trainee.values()
    store = Store(folder, world, on_phase=gate)
    with Saver(store, on_end=lambda save: ended.append((save.step, save.committed))) as saver:
        saver.save(1, {"trainee": trainee, "own": own}, {"metric": 1.0})
        assert gate.reached.wait(30)
        own.state["step"] = 4  # what the owner does with it now has no effect
        own.own[0] = "changed"
        for _ in range(3):  # the save is blocked, the training is not
            trainee.step()
            saver.poll()
        assert ended == []
        assert not (folder / "step_00000001").exists()
        assert not all(same_bits(saved[name], tensor) for name, tensor in trainee.values().items())
        gate.open()
        last = trainee.values()
        saver.finish(4, {"trainee": trainee, "own": own}, {})
    assert ended == [(1, True), (4, True)]

    for found in store.checkpoints():
        assert found.verified
        expected = {1: saved, 4: last}[found.step]
        store.load(found, {"trainee": trainee, "own": own})
        assert all(same_bits(tensor, expected[name]) for name, tensor in trainee.values().items()), found.step
        assert own.state["step"] == found.step
        assert own.loaded == ([[rank] for rank in range(world.size)] if found.step == 1 else [["changed"]] * world.size)
    world.leave()


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3)])
def test_training_goes_on_during_a_save_of_the_state_as_it_was(tmp_path: Path, strategy: str, ranks: int) -> None:
    must_succeed(overlapping, ranks, tmp_path / "store", strategy, logs=tmp_path / "logs")


def test_a_single_process_saves_in_the_background_too(tmp_path: Path) -> None:
    gate, weight = Gate("written"), torch.ones(3)
    with Saver(Store(tmp_path, World.single(), on_phase=gate)) as saver:
        saver.save(1, {"part": Part({"w": weight})}, {})
        weight += 1
        assert gate.reached.wait(30)
        gate.open()
        saver.wait()
    assert torch.equal(read_tensors(tmp_path / "step_00000001", "part")["w"], torch.ones(3))


def waiting(folder: Path) -> None:
    world = World.join(device="cpu")
    gate = Gate("written")
    weight = torch.zeros(1000)
    with Saver(Store(folder, world, on_phase=gate)) as saver:
        for step in (1, 2):
            weight.fill_(step)
            if step == 2:
                threading.Timer(0.2, gate.open).start()
            saver.save(step, {"part": Part({"w": weight})}, {})
        assert (folder / "step_00000001").exists(), "the second save began before the first had ended"
        weight.fill_(3)
        saver.finish(2, {"part": Part({"w": weight})}, {})
    world.leave()


def test_the_next_save_waits_for_the_pending_one(tmp_path: Path) -> None:
    must_succeed(waiting, 2, tmp_path / "store", logs=tmp_path / "logs")
    for step in (1, 2):
        found = read_tensors(tmp_path / "store" / f"step_0000000{step}", "part")
        assert torch.equal(found["w"], torch.full((1000,), float(step)))


def test_without_background_nothing_is_copied_and_the_caller_waits(tmp_path: Path) -> None:
    store = Store(tmp_path, World.single())
    with Saver(store, background=False) as saver:
        threads = threading.active_count()
        saver.save(1, {"part": Part({"w": torch.ones(2)})}, {})
        assert (tmp_path / "step_00000001").exists()
        assert threading.active_count() == threads
        assert saver._buffers._kept == {}


def test_both_ways_write_the_same_files(tmp_path: Path) -> None:
    tensors = {"a": values("a", (30, 20)), "b": values("b", (7,)).bfloat16(), "c": values("c", ())}
    for in_thread in (True, False):
        with Saver(Store(tmp_path / str(in_thread), World.single()), background=in_thread) as saver:
            saver.finish(3, {"part": Part({**tensors, "n": 1})}, {})
    one, other = (read_manifest(tmp_path / name / "step_00000003").files for name in ("True", "False"))
    assert one == other


def test_a_state_that_came_from_the_disk_is_not_saved_again(tmp_path: Path) -> None:
    with Saver(Store(tmp_path, World.single()), last_step=5) as saver:
        saver.finish(5, {"part": Part({})}, {})
    assert os.listdir(tmp_path) == []


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_failures is 0; set it to 1 to stop at the first save that fails"):
        Saver(Store(tmp_path, World.single()), max_failures=0)


def test_memory_for_copies_is_reused(tmp_path: Path) -> None:
    buffers, source = Buffers(), {"a": torch.ones(4, 4), "b": torch.ones(2)}
    first = buffers.copy(source).tensors
    addresses = {name: tensor.data_ptr() for name, tensor in first.items()}
    source = {"a": torch.full((4, 4), 2.0), "b": torch.ones(3), "c": torch.ones(1)}  # b has grown, c is new
    second = buffers.copy(source).tensors
    assert second["a"].data_ptr() == addresses["a"]
    assert all(torch.equal(second[name], source[name]) for name in source)
    assert all(second[name].data_ptr() != source[name].data_ptr() for name in source)


def test_the_first_save_finds_its_memory_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"part": Part({"w": torch.ones(10), "v": torch.ones(3, 3)})}
    with Saver(Store(tmp_path, World.single())) as saver:
        saver.reserve(state)
        addresses = {name: buffer.data_ptr() for name, buffer in saver._buffers._kept.items()}
        assert len(addresses) == 2
        monkeypatch.setattr(torch, "empty", None)  # no memory can be allocated from here on
        saver.save(1, state, {})
        saver.wait()
        assert {name: buffer.data_ptr() for name, buffer in saver._buffers._kept.items()} == addresses


def stuck(folder: Path, everywhere: bool) -> None:
    """A save that never ends, here or on the other rank, while the training fails."""
    world = World.join(device="cpu")
    background.GRACE = 0.2
    gate = Gate("staged")
    with Saver(Store(folder, world, on_phase=gate if everywhere or world.rank == 1 else lambda phase: None)) as saver:
        saver.save(1, {"part": Part({"w": torch.ones(10)})}, {})
        world.barrier()
        raise ValueError("the training failed")


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_save_that_never_ends_does_not_keep_a_failing_run_alive(tmp_path: Path, everywhere: bool) -> None:
    began = time.monotonic()
    codes = run_ranks(stuck, 2, tmp_path / "store", everywhere, logs=tmp_path / "logs")
    assert codes == [1, 1]
    assert time.monotonic() - began < 40, "the gate holds for 60 s"


SINGLE_PROCESS = """
import sys, time, torch
from pathlib import Path
from samestep.checkpoint import background
from samestep.checkpoint.store import Store
from samestep.world.world import World
background.GRACE = 0.2
class Part:
    def state_dict(self): return {"w": torch.ones(10)}
store = Store(Path(sys.argv[1]), World.single(), on_phase=lambda phase: time.sleep(60))
with background.Saver(store) as saver:
    saver.save(1, {"part": Part()}, {})
    raise ValueError("the training failed")
"""


def test_the_interpreter_exits_though_a_save_has_not_ended(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SINGLE_PROCESS, tmp_path / "store"], capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.strip().endswith("ValueError: the training failed")


def failing_run(folder: Path) -> None:
    world = World.join(device="cpu")
    with Saver(Store(folder, world, on_phase=lambda phase: time.sleep(0.05))) as saver:
        saver.save(1, {"part": Part({"w": torch.ones(10)})}, {})
        raise ValueError("the training failed")


def test_a_failing_run_lets_the_pending_save_complete(tmp_path: Path) -> None:
    assert run_ranks(failing_run, 2, tmp_path / "store", logs=tmp_path / "logs") == [1, 1]
    assert verify(tmp_path / "store" / "step_00000001") is None


def different_tensors(folder: Path) -> None:
    world = World.join(device="cpu")
    state = {"part": Part({"w": torch.ones(10), f"rank_{world.rank}": torch.ones(1)})}
    with pytest.raises(AssertionError, match="the tensors of the state differ between ranks"):
        Store(folder, world).save(1, state, {})
    world.leave()


def test_tensors_that_differ_between_ranks_are_refused_rather_than_lost(tmp_path: Path) -> None:
    must_succeed(different_tensors, 2, tmp_path / "store", logs=tmp_path / "logs")


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_splits_are_balanced_and_complete(parts: int) -> None:
    sizes = {f"n{i}": (i * 37) % 11 for i in range(40)}
    lists = split_by_size(sizes, parts)
    assert sorted(name for names in lists for name in names) == sorted(sizes)
    loads = [sum(sizes[name] for name in names) for names in lists]
    assert max(loads) - min(loads) <= 11
    assert lists == split_by_size(dict(reversed(sizes.items())), parts), "depends only on sizes and names"


def verify_on_two_ranks(folder: Path, unreadable: bool) -> None:
    world = World.join(device="cpu")
    read: list[str] = []

    def recording(path: Path, expected: object) -> str | None:
        read.append(path.name)
        return "cannot be read (planted)" if unreadable and world.rank == 1 else damage_of(path, expected)  # type: ignore[arg-type]

    store = Store(folder, world)
    for step in (1, 2):
        store.save(step, {"part": Part({name: values(name, (50, 40)) for name in "abcd"})}, {})
    across_ranks.damage_of = recording
    newest = store.newest()
    assert newest is not None
    assert newest.step == 2
    parts = world.gather(sorted(read))
    if not unreadable:
        assert sorted(parts[0] + parts[1]) == sorted(newest.manifest.files if newest.manifest else [])
        assert all("distcp" in " ".join(part) for part in parts), "each rank reads large files"
        if world.is_main:
            (folder / "step_00000002" / "__1_0.distcp").write_bytes(b"damaged")
        world.barrier()
        newest = store.newest()
        assert newest is not None
        assert newest.step == 1
    world.leave()


@pytest.mark.parametrize("unreadable", [False, True])
def test_all_ranks_verify_a_part_and_the_result_of_rank_0_counts(tmp_path: Path, unreadable: bool) -> None:
    workers: Callable[..., object] = verify_on_two_ranks
    codes = run_ranks(workers, 2, tmp_path / "store", unreadable, logs=tmp_path / "logs")
    output = "".join(path.read_text() for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert codes == [0, 0], output
    assert output.count("is damaged and not used") == (0 if unreadable else 1)


def test_on_end_is_called_once_for_each_save(tmp_path: Path) -> None:
    ended: list[PendingSave] = []
    with Saver(Store(tmp_path, World.single()), on_end=ended.append) as saver:
        saver.save(1, {"part": Part({})}, {})
        while not ended:
            saver.poll()
        saver.poll()
        saver.wait()
    assert [(save.step, save.committed, save.failure) for save in ended] == [(1, True, None)]
