"""A connection of a process group counts only after the other side has proved to be the rank that it should be."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samestep.world.authenticated_store import AuthenticatedStore
from samestep.world.failures import PeerFailed
from samestep.world.proved_groups import NotProved, prove_connections, uses_gloo
from samestep.world.world import World
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(300)
KEY = b"k" * 32


def every_group_is_proved() -> None:
    """The default one, those of messages and outcomes, and those that are opened later, also of some ranks only."""
    proved: list[list[int]] = []
    world = World.rendezvous()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "samestep.world.world.prove_connections",
            lambda group, key: (proved.append(dist.get_process_group_ranks(group)), prove_connections(group, key)),
        )
        world.connect(device="cpu", timeout=60)
        everybody = list(range(world.size))
        assert proved == [everybody] * 3
        world.with_own_messages("a thread", world.timeout)
        group = world.open_group("some", ranks=[0, world.size - 1])
    is_member = world.rank in (0, world.size - 1)
    assert proved == [everybody] * 4 + [[0, world.size - 1]] * is_member
    if is_member:
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == 2
    world.leave()


@pytest.mark.parametrize("size", [2, 3])
def test_every_group_is_proved(size: int, tmp_path: Path) -> None:
    run_on_ranks(every_group_is_proved, size, logs=tmp_path)


def another_key_on_rank_1() -> None:
    world = World.rendezvous()
    if world.rank == 1:
        AuthenticatedStore.derive_key = lambda store, purpose: KEY  # type: ignore[method-assign]
    with pytest.raises((NotProved, PeerFailed), match="a stranger holds the connection"):
        world.connect(device="cpu", timeout=60)


def test_who_has_another_key_is_refused_and_all_ranks_end(tmp_path: Path) -> None:
    began = time.monotonic()
    run_on_ranks(another_key_on_rank_1, 3, logs=tmp_path)
    assert time.monotonic() - began < 60, "not the timeout of the group, which is longer"


def with_a_stranger(act: Callable[[], None], expected: str) -> None:
    """Rank 1 is somebody who took the connection, and does something else than to prove it."""
    world = World.join(device="cpu", timeout=60)
    if world.rank == 1:
        act()
    else:
        began = time.monotonic()
        with pytest.raises(NotProved, match=expected):
            prove_connections(dist.group.WORLD, KEY, timeout=2.0)
        assert time.monotonic() - began < 20, "not the timeout of the group"
        world.store.set("over", "")
    world.store.wait(["over"])


def send_back_what_comes() -> None:
    for _ in range(2):
        data = torch.zeros(32, dtype=torch.uint8)
        dist.recv(data, 0)
        dist.send(data, 0)


def send_anything() -> None:
    for _ in range(2):
        incoming = dist.irecv(torch.zeros(32, dtype=torch.uint8), 0)
        dist.send(torch.full((32,), 7, dtype=torch.uint8), 0)
        assert incoming is not None
        incoming.wait()


def say_nothing() -> None:
    return


def end_at_once() -> None:
    os._exit(0)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (send_back_what_comes, "what answers rank 0 as rank 1 in the process group 'default_pg' is not it"),
        (send_anything, "what answers rank 0 as rank 1"),
        (say_nothing, "rank 1 did not prove to rank 0 that it is there"),
        (end_at_once, "it ended, or took too long, or a stranger holds the connection"),
    ],
)
def test_a_stranger_is_refused(act: Callable[[], None], expected: str, tmp_path: Path) -> None:
    run_on_ranks(with_a_stranger, 2, act, expected, logs=tmp_path)


def one_of_two_connections() -> None:
    """gloo has two interfaces, and rank 1 proves its connection on the first one only: rank 0 does not go on."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo,lo"
    world = World.join(device="cpu", timeout=60)
    prove_connections(dist.group.WORLD, KEY)
    if world.rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with pytest.raises(NotProved):
        prove_connections(dist.group.WORLD, KEY, timeout=2.0)
    world.store.set(f"over {world.rank}", "")
    world.store.wait(["over 0", "over 1"])


def test_the_connections_of_all_interfaces_are_proved(tmp_path: Path) -> None:
    run_on_ranks(one_of_two_connections, 2, logs=tmp_path)


def proofs_of_one_group_in_another() -> None:
    world = World.join(device="cpu", timeout=60)
    group = world.open_group("other")
    assert uses_gloo(group)
    assert group.group_name != dist.group.WORLD.group_name, "the name is a part of the proof"
    world.leave()


def test_groups_have_names_of_their_own(tmp_path: Path) -> None:
    run_on_ranks(proofs_of_one_group_in_another, 2, logs=tmp_path)


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ("cpu:gloo,cuda:gloo", True),
        ("cpu:gloo,cuda:nccl", True),
        ("cpu:gloo,xpu:xccl", True),
        ("cuda:nccl", False),
        ("cuda:gloo", False),
        ("cpu:mpi,cuda:gloo", False),
    ],
)
def test_what_counts_is_the_backend_of_the_cpu(backends: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert uses_gloo(None) == expected
