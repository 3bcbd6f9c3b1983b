"""What the watchdog knows of collectives that run on a card."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samestep.core.json_files import read_json
from samestep.launching import local
from samestep.world.watchdog import stack_dump
from samestep.world.world import World

pytestmark = pytest.mark.gpu


def reduce_and_check(folder: Path) -> None:
    world = World.join(device="cuda", backend="nccl", timeout=60)
    before = stack_dump.collective_counts()["default"]
    for _ in range(3):
        dist.all_reduce(torch.ones(7, device=world.device))
    torch.cuda.synchronize()
    assert stack_dump.collective_counts()["default"] == before + 3
    last = [(group, what) for group, _, what in stack_dump.recent_collectives()][-3:]
    assert all(group == "default" and "all_reduce" in what and "of 7 " in what for group, what in last), last
    stack_dump.dump_collectives(folder / "watch.json")
    world.leave()


@pytest.mark.timeout(900)
def test_nccls_collectives_are_counted_and_recorded(tmp_path: Path) -> None:
    workers = local.start(reduce_and_check, 1, tmp_path, logs=tmp_path)
    assert workers.wait(100) == [0], workers.output(0)
    assert len(read_json(tmp_path / "watch.json")["entries"]) >= 3
