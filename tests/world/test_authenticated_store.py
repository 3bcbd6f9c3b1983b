"""Entries of a store that only processes with the same key can write, for us and for torch's process groups."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from samestep.core.store_server import LOCALHOST, serve_store
from samestep.world.authenticated_store import AuthenticatedStore, NotAuthentic
from samestep.world.world import World
from toys import WORLDS, Case, on_ranks

KEY = b"k" * 32


@pytest.fixture(params=[serve_store, HashStore], ids=["tcp", "hash"])
def inner(request: pytest.FixtureRequest) -> Any:
    return request.param(only_here=True) if request.param is serve_store else request.param()


@pytest.fixture
def store(inner: Any) -> AuthenticatedStore:
    return AuthenticatedStore(inner, KEY)


def test_it_is_a_store_like_any_other(store: AuthenticatedStore) -> None:
    other = PrefixStore("p", store)  # as torch uses it: from C++
    other.set("a", "1")
    assert (other.get("a"), store.get("p/a")) == (b"1", b"1")
    assert other.check(["a"]) and not other.check(["b"])
    assert [other.add("n", amount) for amount in (2, -1, 0, 0)] == [2, 1, 1, 1]
    assert other.add("zero", 0) == 0 and other.check(["zero"])
    assert other.get("n") == b"1"
    assert other.compare_set("c", "", "first") == b"first"
    assert other.compare_set("c", "", "second") == b"first"
    assert other.compare_set("c", "first", "second") == other.get("c") == b"second"
    assert other.compare_set("d", "x", "y") == b"" and not other.check(["d"])
    other.multi_set(["e", "f"], ["5", "6"])
    assert other.multi_get(["f", "e"]) == [b"6", b"5"]
    store.append("g", "a")
    store.append("g", b"b")
    assert store.get("g") == b"ab"
    count = other.num_keys()
    assert other.delete_key("a") and not other.check(["a"])
    assert other.num_keys() == count - 1
    with pytest.raises(dist.DistStoreError):
        other.wait(["never"], timedelta(milliseconds=50))


@given(st.text(max_size=20), st.binary(max_size=100))
def test_any_name_and_value(name: str, value: bytes) -> None:
    store = AuthenticatedStore(HashStore(), KEY)
    store.set(name, value)
    assert store.get(name) == value


READS: dict[str, Callable[[Any], object]] = {
    "get": lambda store: store.get("a"),
    "multi_get": lambda store: store.multi_get(["a"]),
    "add": lambda store: store.add("a", 1),
    "add nothing": lambda store: store.add("a", 0),
    "compare_set": lambda store: store.compare_set("a", "1", "2"),
    "append": lambda store: store.append("a", "2"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("attack", ["plain", "changed", "moved", "other key"])
def test_what_another_program_wrote_is_an_error(store: AuthenticatedStore, read: Any, attack: str) -> None:
    store.set("a", "1")
    store.set("b", "2")
    read(store)  # so far all is well
    name, inner = store._name("a"), store.inner
    if attack == "plain":
        inner.set(name, "1")
    elif attack == "changed":
        inner.set(name, inner.get(name)[:-1] + b"3")
    elif attack == "moved":
        inner.set(name, inner.get(store._name("b")))
    else:
        inner.set(name, AuthenticatedStore(inner, b"guessed")._sealed("a", "1"))
    with pytest.raises(NotAuthentic, match=r"entry 'a' .* was not written by its ranks"):
        read(store)


def test_names_and_keys_are_not_to_be_seen(store: AuthenticatedStore) -> None:
    store.set("samestep/secret plan", "x")
    if hasattr(store.inner, "list_keys") and isinstance(store.inner, TCPStore):
        assert not [key for key in store.inner.list_keys() if "plan" in key]


def test_sums_of_many_at_once_are_right() -> None:
    server = serve_store(only_here=True)
    sums: list[int] = []

    def count() -> None:
        client = TCPStore(LOCALHOST, server.port, is_master=False, wait_for_workers=False)
        store = AuthenticatedStore(client, KEY)
        sums.extend(store.add("n", 1) for _ in range(20))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sums) == list(range(1, 161))


@pytest.mark.parametrize("inner", [serve_store], indirect=True, ids=["tcp"])  # the other has no connections
def test_a_copy_is_a_connection_of_its_own(store: AuthenticatedStore) -> None:
    PrefixStore("p", store).clone().set("a", "1")  # from C++, which holds no Python object
    assert store.get("p/a") == b"1"


def groups_use_it(world: World, strategy: str) -> None:
    """torch's groups, made while the test runs, exchange their addresses through it."""
    assert isinstance(world.store, AuthenticatedStore)
    group = dist.new_group(backend="gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    assert ones.item() == world.size
    if isinstance(world.store.inner, TCPStore):
        assert not [key for key in world.store.inner.list_keys() if "group" in key or "cpu" in key]


CASES: list[Case] = [groups_use_it]

test_on_ranks = on_ranks(CASES, [world for world in WORLDS if world[1] == "ddp"])
