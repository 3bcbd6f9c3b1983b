"""Requests of any rank are agreed on by all at the same step, soon, and with few messages where steps are short."""

from pathlib import Path

import pytest
import torch.distributed as dist

from samestep.launching import local
from samestep.world.agreement import MAX_DELAY, MAX_STEPS, Agreement
from samestep.world.world import World


class Clock:
    """Time that passes only when a test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def agreed_at(world: World, seconds: list[float], requested: int) -> list[int]:
    """The steps at which a request is agreed on that the last rank makes from step `requested` on."""
    clock = Clock()
    agreement = Agreement(world, clock)
    world.async_gather.flush()  # others may send something before the first step
    found: list[int] = []
    for step, took in enumerate(seconds):
        clock.now += took * (1 + world.rank)  # ranks are not equally fast
        request = world.rank == world.size - 1 and step >= requested and not found
        first, second = agreement.exchange([request, False])
        assert not second
        found += [step] if first else []
    agreement.wait()
    return found


def agree() -> None:
    world = World.join(device="cpu", timeout=60)
    long, short = [MAX_DELAY] * 20, [MAX_DELAY / 100] * 60
    for seconds, requested in [(long, 0), (long, 3), (short, 3), (short, 30), (short + long, 58), (long + short, 25)]:
        found = agreed_at(world, seconds, requested)
        assert len({str(each) for each in world.gather(found)}) == 1, "all ranks at the same step"
        late = found[0] - requested
        assert 1 <= late <= MAX_STEPS + 1, (found, requested)
        assert seconds is not long or late == 1, "at long steps it is the next one"
    world.leave()


@pytest.mark.parametrize("size", [2, 3])
def test_one_ranks_request_is_agreed_on_by_all_at_the_same_step(tmp_path: Path, size: int) -> None:
    workers = local.start(agree, size, logs=tmp_path)
    assert workers.wait(40) == [0] * size, workers.output(1)


def count_messages() -> None:
    world = World.join(device="cpu", timeout=60)
    sent, all_gather = [], dist.all_gather
    dist.all_gather = lambda *args, **kwargs: (sent.append(1), all_gather(*args, **kwargs))[1]
    on_average = (1 + world.size) / 2
    for seconds, expected in [(MAX_DELAY, 80), (MAX_DELAY / 2.5, 80 // 2), (MAX_DELAY / 1000, 80 // MAX_STEPS)]:
        sent.clear()
        agreed_at(world, [seconds / on_average] * 80, requested=80)
        assert expected <= len(sent) <= expected + 4, (seconds, len(sent))
    world.leave()


def test_short_steps_share_a_message(tmp_path: Path) -> None:
    workers = local.start(count_messages, 2, logs=tmp_path)
    assert workers.wait(40) == [0, 0], workers.output(0)


def ride_along() -> None:
    """Something else is sent every third step: requests go with it, at once, and need no message of their own."""
    world = World.join(device="cpu", timeout=60)
    sent, all_gather = [], dist.all_gather
    clock = Clock()
    agreement = Agreement(world, clock)
    dist.all_gather = lambda *args, **kwargs: (sent.append(1), all_gather(*args, **kwargs))[1]
    agreed = []
    for step in range(60):
        clock.now += MAX_DELAY / 10
        if agreement.exchange([world.rank == 1 and step in (31, 32, 33)]) == [True]:
            agreed.append(step)
        if step % 3 == 0:
            world.async_gather.submit([1.0])
            world.async_gather.flush()
    assert agreed == [34], "requested at 31, read by all with the message of 33"
    assert len(sent) <= 20 + 2, "the first steps are not known to be short"
    world.leave()


def test_requests_go_along_with_other_messages(tmp_path: Path) -> None:
    workers = local.start(ride_along, 2, logs=tmp_path)
    assert workers.wait(40) == [0, 0], workers.output(0)


def test_a_lone_process_agrees_with_its_request_at_once() -> None:
    assert Agreement(World.single()).exchange([True]) == [True]
