"""Wishes of any rank are granted on all at the same step, soon, and with few messages where steps are short."""

from pathlib import Path

import pytest
import torch.distributed as dist

from samestep.launch import local
from samestep.world.agreement import LONGEST, PATIENCE, Agreement
from samestep.world.world import World


class Clock:
    """Time that passes only when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def granted_at(world: World, seconds: list[float], wished: int) -> list[int]:
    """The steps at which a wish is granted that the last rank has from step `wished` on, until it is granted."""
    clock = Clock()
    agreement = Agreement(world, clock)
    world.async_gather.send()  # others may speak before the first step
    found: list[int] = []
    for step, took in enumerate(seconds):
        clock.now += took * (1 + world.rank)  # ranks are not equally fast
        wish = world.rank == world.size - 1 and step >= wished and not found
        first, second = agreement.exchange([wish, False])
        assert not second
        found += [step] if first else []
    agreement.wait()
    return found


def agree() -> None:
    world = World.join(device="cpu", timeout=60)
    long, short = [PATIENCE] * 20, [PATIENCE / 100] * 60
    for seconds, wished in [(long, 0), (long, 3), (short, 3), (short, 30), (short + long, 58), (long + short, 25)]:
        found = granted_at(world, seconds, wished)
        assert len({str(each) for each in world.gather(found)}) == 1, "all ranks at the same step"
        late = found[0] - wished
        assert 1 <= late <= LONGEST + 1, (found, wished)
        assert seconds is not long or late == 1, "at long steps it is the next one"
    world.leave()


@pytest.mark.parametrize("size", [2, 3])
def test_one_ranks_wish_is_granted_on_all_at_the_same_step(tmp_path: Path, size: int) -> None:
    workers = local.start(agree, size, logs=tmp_path)
    assert workers.wait(40) == [0] * size, workers.output(1)


def count_messages() -> None:
    world = World.join(device="cpu", timeout=60)
    sent, all_gather = [], dist.all_gather
    dist.all_gather = lambda *words, **how: (sent.append(1), all_gather(*words, **how))[1]
    on_average = (1 + world.size) / 2
    for seconds, expected in [(PATIENCE, 80), (PATIENCE / 2.5, 80 // 2), (PATIENCE / 1000, 80 // LONGEST)]:
        sent.clear()
        granted_at(world, [seconds / on_average] * 80, wished=80)
        assert expected <= len(sent) <= expected + 4, (seconds, len(sent))
    world.leave()


def test_short_steps_share_a_message(tmp_path: Path) -> None:
    workers = local.start(count_messages, 2, logs=tmp_path)
    assert workers.wait(40) == [0, 0], workers.output(0)


def ride_along() -> None:
    """Somebody else speaks every third step: wishes go with that, at once, and need no message of their own."""
    world = World.join(device="cpu", timeout=60)
    sent, all_gather = [], dist.all_gather
    clock = Clock()
    agreement = Agreement(world, clock)
    dist.all_gather = lambda *words, **how: (sent.append(1), all_gather(*words, **how))[1]
    granted = []
    for step in range(60):
        clock.now += PATIENCE / 10
        if agreement.exchange([world.rank == 1 and step in (31, 32, 33)]) == [True]:
            granted.append(step)
        if step % 3 == 0:
            world.async_gather.put([1.0])
            world.async_gather.send()
    assert granted == [34], "said at 31, heard of by all with the message of 33"
    assert len(sent) <= 20 + 2, "the first steps are not known to be short"
    world.leave()


def test_wishes_go_along_with_other_messages(tmp_path: Path) -> None:
    workers = local.start(ride_along, 2, logs=tmp_path)
    assert workers.wait(40) == [0, 0], workers.output(0)


def test_a_lone_process_is_granted_its_wish_at_once() -> None:
    assert Agreement(World.single()).exchange([True]) == [True]
