"""Letters reach their sums over all ranks, several in one message."""

from pathlib import Path

import pytest
import torch.distributed as dist

from samestep.world.async_gather import AsyncGather
from samestep.world.world import World
from toys import run_on_ranks


def correspond() -> None:
    world = World.join(device="cpu", timeout=60)
    sent: list[int] = []
    all_gather = dist.all_gather
    dist.all_gather = lambda parts, own, **how: (sent.append(len(own)), all_gather(parts, own, **how))[1]
    post, own, size = world.async_gather, world.rank + 1.0, world.size
    everyone = size * (size + 1) / 2

    first, empty, second = post.put([own, 7.0]), post.put([]), post.put([2 * own])
    assert not first.sent and sent == []
    post.send()
    assert first.sent and empty.sent and second.sent and sent == [3], "one message for all"
    assert second.read() == [2 * everyone] and first.read() == [everyone, 7.0 * size] and empty.read() == []
    assert first.by_rank() == [[rank + 1.0, 7.0] for rank in range(size)] and first.read() == [everyone, 7.0 * size]

    open_letter, other = post.put([0.0, 0.0]), post.put([own])
    open_letter.rewrite([own, -own])
    assert other.read() == [everyone], "it is sent when somebody wants to know"
    assert open_letter.sent and sent == [3, 3], "and what waits goes along"
    assert open_letter.read() == [everyone, -everyone]
    with pytest.raises(AssertionError):
        open_letter.rewrite([1.0, 1.0])

    third = post.put([own])
    post.send()
    fourth = post.put([10 * own])
    assert fourth.read() == [10 * everyone] and third.read() == [everyone], "two messages under way at once"
    post.send()
    assert sent == [3, 3, 1, 1], "nothing to say, nothing sent"
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_letters_share_a_message(tmp_path: Path, size: int) -> None:
    run_on_ranks(correspond, size, logs=tmp_path)


def test_a_lone_process_has_its_sums_at_once() -> None:
    letter = AsyncGather().put([1.0, 2.0])
    assert letter.sent and letter.read() == [1.0, 2.0] and letter.by_rank() == [[1.0, 2.0]]
