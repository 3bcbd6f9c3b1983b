"""What a process takes at most, and what control groups leave it."""

from pathlib import Path

import pytest
import torch

from samestep.world import memory
from samestep.world.memory import HostMemory, available_memory, is_out_of_memory, memory_of
from samestep.world.world import World

MIB = 2**20


def test_the_most_that_some_work_takes_is_seen_although_it_is_given_back() -> None:
    measured = memory_of(World.single())
    if measured is None:
        pytest.skip("this system does not tell")
    measured.give_back()
    before = measured.used()
    most = measured.most_used(lambda: torch.ones(64 * MIB // 4).sum())
    assert 60 * MIB < most - before < 120 * MIB
    assert measured.most_used(lambda: None) < before + 40 * MIB, "the next peak begins anew"
    assert measured.limit < before + 0.6 * available_memory()


def test_the_limit_of_a_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "slurm" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("1000")
    (job / "memory.current").write_text("700")
    (job / "memory.stat").write_text("anon 5\ninactive_file 50\n")
    (tmp_path / "slurm" / "memory.max").write_text("max")
    (tmp_path / "slurm" / "memory.current").write_text("900")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    names = ("memory.max", "memory.current", "inactive_file")
    assert list(memory._left_in_group(tmp_path, "/slurm/job/step", *names)) == [350]
    assert available_memory() > 0


def test_errors_of_other_kinds_are_no_lack_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError()) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes differ")) and not is_out_of_memory(ValueError("out of memory"))


def test_a_host_leaves_half_of_what_is_free() -> None:
    assert HostMemory(1000.0).limit == pytest.approx(HostMemory(0.0).limit + 500, abs=64 * MIB)
