"""Ranks killed with SIGKILL at every phase of a save: the next start finds the last complete checkpoint, intact."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from checkpoint_parts import PRELOAD, Part, must_succeed, run_ranks, same_bits, values

from samestep.checkpoint.background import Saver
from samestep.checkpoint.manifest import find_checkpoints, verify
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.store import Store
from samestep.launching.local import start
from samestep.world.world import World

KEEP_ONE = Retention(keep_last=1, keep_best=0)
NAMES = ("a", "b", "c")


def state(mark: str, shape: tuple[int, ...] = (20, 30)) -> dict[str, Part]:
    return {"model": Part({"weights": {name: values(mark + name, shape) for name in NAMES}, "mark": mark})}


def loaded(store: Store, shape: tuple[int, ...] = (20, 30)) -> tuple[int, str]:
    """The step and the mark of what a fresh start loads, every bit of it compared."""
    found = store.newest()
    assert found is not None
    blank = {"model": Part({"weights": {name: torch.zeros(shape) for name in NAMES}, "mark": ""})}
    store.load(found, blank)
    mark = blank["model"].state["mark"]
    for name, tensor in blank["model"].state["weights"].items():
        assert same_bits(tensor, values(mark + name, shape)), name
    return found.step, mark


def save_and_die(
    folder: Path, steps: tuple[int, int], phase: str, victims: tuple[int, ...], background: bool = False
) -> None:
    world = World.join(device="cpu", timeout=30)

    def die(reached: str) -> None:
        if reached == phase and world.rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)

    Store(folder, world, keep=KEEP_ONE).save(steps[0], state("first"), {})
    store = Store(folder, world, keep=KEEP_ONE, on_phase=die)
    if not background:
        store.save(steps[1], state("second"), {})
        world.barrier()
        return
    with Saver(store) as saver:
        changing = state("second")
        saver.save(steps[1], changing, {})
        for tensor in changing["model"].state["weights"].values():
            tensor.zero_()
        while True:  # training goes on, as long as there are peers
            world.barrier()


CASES = [
    ("staged", (0,), "first"),
    ("staged", (1,), "first"),
    ("written", (0,), "first"),
    ("written", (1,), "first"),
    ("written", (0, 1), "first"),
    ("reported", (0,), "first"),
    ("reported", (1,), "second"),  # its files are all there and reported, so rank 0 completes the checkpoint
    ("reported", (0, 1), "first"),
    ("manifest", (0,), "first"),
    ("renamed", (0,), "second"),
    ("pruned", (0,), "second"),
]


@pytest.mark.parametrize("background", [False, True], ids=["waiting", "in the background"])
@pytest.mark.parametrize(("phase", "victims", "expected"), CASES)
def test_a_kill_at_any_phase_of_a_save_loses_nothing(
    tmp_path: Path, phase: str, victims: tuple[int, ...], expected: str, background: bool
) -> None:
    folder = tmp_path / "store"
    codes = run_ranks(save_and_die, 2, folder, (1, 2), phase, victims, background, logs=tmp_path / "logs")
    assert [codes[rank] for rank in victims] == [-signal.SIGKILL] * len(victims)
    assert all(code not in (0, None) for code in codes), "a survivor notices, and ends with an error"

    store = Store(folder, World.single(), keep=KEEP_ONE)
    step = 1 if expected == "first" else 2
    assert loaded(store) == (step, expected)
    store.remove_leftovers()
    assert loaded(store) == (step, expected)
    assert all(not name.startswith(".") for name in os.listdir(folder)), "leftovers are gone"
    assert all(verify(checkpoint.path) is None for checkpoint in find_checkpoints(folder))


@pytest.mark.parametrize("background", [False, True], ids=["waiting", "in the background"])
@pytest.mark.parametrize(("phase", "expected"), [("manifest", "first"), ("replaced", "first"), ("renamed", "second")])
def test_a_kill_while_a_checkpoint_is_replaced(tmp_path: Path, phase: str, expected: str, background: bool) -> None:
    folder = tmp_path / "store"
    codes = run_ranks(save_and_die, 2, folder, (1, 1), phase, (0,), background, logs=tmp_path / "logs")
    assert codes[0] == -signal.SIGKILL
    store = Store(folder, World.single())
    assert loaded(store) == (1, expected), "also before leftovers are removed"
    store.remove_leftovers()
    assert loaded(store) == (1, expected)
    assert os.listdir(folder) == ["step_00000001"]


def start_again(folder: Path, expected: tuple[int, str]) -> None:
    world = World.join(device="cpu")
    store = Store(folder, world, keep=KEEP_ONE)
    store.remove_leftovers()
    assert loaded(store) == expected
    store.save(2, state("third"), {})
    assert loaded(store) == (2, "third")
    world.leave()


def test_a_fresh_start_on_several_ranks_carries_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    run_ranks(save_and_die, 2, folder, (1, 2), "manifest", (0,), logs=tmp_path / "killed")
    assert (folder / ".staging_step_00000002" / "manifest.json").exists()
    must_succeed(start_again, 2, folder, (1, "first"), logs=tmp_path / "again")
    assert os.listdir(folder) == ["step_00000002"]


LARGE = (300, 500)


def save_forever(folder: Path) -> None:
    """The state changes with every step, whether its save is done or not."""
    world = World.join(device="cpu", timeout=30)
    store = Store(folder, world, keep=KEEP_ONE)
    changing, step = state("0", LARGE), 0
    with Saver(store) as saver:
        while True:
            step += 1
            changing["model"].state["mark"] = str(step)
            for name, tensor in changing["model"].state["weights"].items():
                tensor.copy_(values(f"{step}{name}", LARGE))
            if step % 2 == 0:
                saver.save(step, changing, {})


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_a_random_moment_loses_nothing(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "store"
    workers = start(save_forever, 2, folder, logs=tmp_path / "logs", preload=PRELOAD)
    end = time.monotonic() + 60
    while not any(checkpoint.step >= 2 for checkpoint in find_checkpoints(folder)):
        assert time.monotonic() < end, workers.output(0)
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 0.2))
    workers.kill()
    store = Store(folder, World.single(), keep=KEEP_ONE)
    step, mark = loaded(store, LARGE)
    assert step >= 2
    assert mark == str(step)
    store.remove_leftovers()
    assert loaded(store, LARGE) == (step, mark)
