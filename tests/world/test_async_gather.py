"""Submitted numbers are summed over all ranks, several results in one message."""

from pathlib import Path

import pytest
import torch.distributed as dist

from samestep.world.async_gather import AsyncGather
from samestep.world.frames import FRAME
from samestep.world.world import World
from toys import run_on_ranks


def exchange() -> None:
    world = World.join(device="cpu", timeout=60)
    sent: list[int] = []
    all_gather = dist.all_gather
    dist.all_gather = lambda parts, own, **how: (sent.append(len(own)), all_gather(parts, own, **how))[1]
    gather, own, size = world.async_gather, world.rank + 1.0, world.size
    everyone = size * (size + 1) / 2

    first, empty, second = gather.submit([own, 7.0]), gather.submit([]), gather.submit([2 * own])
    assert not first.is_sent and sent == []
    gather.flush()
    assert first.is_sent and empty.is_sent and second.is_sent and sent == [FRAME], "one message for all"
    assert second.sums() == [2 * everyone] and first.sums() == [everyone, 7.0 * size] and empty.sums() == []
    assert first.by_rank() == [[rank + 1.0, 7.0] for rank in range(size)] and first.sums() == [everyone, 7.0 * size]

    replaced, other = gather.submit([0.0, 0.0]), gather.submit([own])
    replaced.replace([own, -own])
    assert other.sums() == [everyone], "reading it sends it"
    assert replaced.is_sent and sent == [FRAME] * 2, "and what else was submitted goes along"
    assert replaced.sums() == [everyone, -everyone]
    with pytest.raises(AssertionError):
        replaced.replace([1.0, 1.0])

    third = gather.submit([own])
    gather.flush()
    fourth = gather.submit([10 * own])
    assert fourth.sums() == [10 * everyone] and third.sums() == [everyone], "two messages under way at once"
    gather.flush()
    assert sent == [FRAME] * 4, "nothing is sent when nothing was submitted"
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_share_a_message(tmp_path: Path, size: int) -> None:
    run_on_ranks(exchange, size, logs=tmp_path)


def test_a_lone_process_has_its_sums_at_once() -> None:
    result = AsyncGather().submit([1.0, 2.0])
    assert result.is_sent and result.sums() == [1.0, 2.0] and result.by_rank() == [[1.0, 2.0]]
