"""Messages between ranks are read only if the rank that they name wrote them for this place."""

from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.core.errors import RunFailed, UserError
from samestep.world.messages import Messages
from samestep.world.world import World
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(300)
TEXT = {"text": "é" * 3, "numbers": [1, 2.5, None]}


def round_trips() -> None:
    world = World.join(device="cpu", timeout=60)
    messages, size = world.messages, world.size
    assert messages is not None
    own = {"rank": world.rank, "long": "x" * (1000 * world.rank)}
    everyone = [{"rank": rank, "long": "x" * (1000 * rank)} for rank in range(size)]
    for _ in range(2):
        assert messages.gather(own) == everyone
        assert messages.share(own, source=size - 1) == everyone[-1]
        assert messages.gather_to_main(own) == (everyone if world.is_main else [])
        assert messages.scatter_from_main(everyone if world.is_main else []) == own
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_arrive(size: int, tmp_path: Path) -> None:
    run_on_ranks(round_trips, size, logs=tmp_path)


class _Group:
    """A group that sends nothing, for messages that are passed on by hand."""

    group_name = "0"


def member(rank: int, key: bytes = b"key", name: str = "0") -> Messages:
    messages = Messages.__new__(Messages)
    messages.group, messages._key, messages._rank, messages._size, messages._number = _Group(), key, rank, 2, 0
    messages.group.group_name = name
    return messages


def sent_by(sender: Messages, value: Any = TEXT) -> torch.Tensor:
    return sender._sealed(value)


def received(messages: Messages, data: torch.Tensor, sender: int) -> Any:
    messages._number += 1
    return messages._opened(data, sender)


def test_a_message_counts_once_and_as_its_senders() -> None:
    data = sent_by(member(1))
    assert received(member(0), data, 1) == TEXT
    changed = data.clone()
    changed[-3] ^= 1
    later = member(0)
    later._number = 1
    for reader, message, sender in (
        (member(0), changed, 1),
        (member(0), data, 0),
        (later, data, 1),
        (member(0, key=b"other"), data, 1),
        (member(0, name="1"), data, 1),
        (member(0), data[:20], 1),
        (member(0), data[:0], 1),
    ):
        with pytest.raises(RunFailed, match=f"a message of rank {sender} was changed on its way"):
            received(reader, message, sender)


def exchanges() -> None:
    world = World.join(device="cpu", timeout=60)
    size = world.size
    got = world.exchange_with_main("adding", lambda: world.rank + 1, lambda all_: [sum(all_) * 10 + n for n in all_])
    assert got == 10 * size * (size + 1) // 2 + world.rank + 1

    def full_on_last() -> int:
        if world.rank == size - 1:
            raise OSError(28, "No space left on device")
        return 1

    with pytest.raises(RunFailed, match=f"saving failed on rank {size - 1}: OSError: .*No space left"):
        world.exchange_with_main("saving", full_on_last, lambda all_: pytest.fail("nothing to answer"))

    def refuse(values: list[int]) -> list[int]:
        raise UserError("choose another folder")

    with pytest.raises(UserError, match="choose another folder"):
        world.exchange_with_main("saving", lambda: 1, refuse)

    def bug(values: list[int]) -> list[int]:
        raise KeyError("a bug")

    with pytest.raises(KeyError if world.is_main else RunFailed, match="a bug"):
        world.exchange_with_main("saving", lambda: 1, bug)
    assert world.exchange_with_main("adding", lambda: 1, lambda all_: all_) == 1, "a failure leaves no mark"
    world.leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rank_0_answers_every_rank(size: int, tmp_path: Path) -> None:
    run_on_ranks(exchanges, size, logs=tmp_path)


def test_a_lone_process_answers_itself() -> None:
    world = World.single()
    assert world.exchange_with_main("adding", lambda: 1, lambda values: [sum(values) + 1]) == 2

    def full() -> int:
        raise OSError("the disk is full")

    with pytest.raises(RunFailed, match="saving failed on rank 0: OSError: the disk is full"):
        world.exchange_with_main("saving", full, lambda values: values)
