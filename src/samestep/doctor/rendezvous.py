"""How ranks of `samestep doctor` find each other and communicate: through the rendezvous store alone.

No process group is needed for that, so a network that fails for collectives can be distinguished from a rank that is
missing. Every wait has a time limit: work that may hang runs in a thread that can be left behind.
"""

import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json
from samestep.core.secret import derive_key
from samestep.doctor.clock import ClockServer
from samestep.doctor.findings import number_ranges
from samestep.world.network_interface import is_loopback
from samestep.world.rank_discovery import RankInfo
from samestep.world.rendezvous import authenticated, open_store, store_key
from samestep.world.source_lines import relevant_line
from samestep.world.watchdog.stack_dump import stack_of
from samestep.world.world import World

T = TypeVar("T")


class TimeLimitExceeded(Exception):
    """Work was not done in time. `where` is the source line at which it was seen last."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; `TimeLimitExceeded` if it takes longer, and its thread is left running."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    thread.join(seconds)
    if result:
        return result[0]
    if failure:
        raise failure[0]
    raise TimeLimitExceeded(relevant_line(stack_of(thread.ident or 0)) or "an unknown source line")


def exit_after(seconds: float) -> None:
    """End this process with a stack dump after so many seconds, unless this is called again; 0 cancels it.

    No Python code runs for it, so it works even where foreign code holds the interpreter for ever.
    """
    faulthandler.cancel_dump_traceback_later()
    if seconds and sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


_POLL_SECONDS = 0.01


class StoreChannel:
    """A connection to the store."""

    def __init__(self, store: Any) -> None:  # torch's stubs do not know all methods of a store
        self.store = store

    def put(self, key: str, value: Json) -> None:
        self.store.set(key, json.dumps(value))

    def has(self, key: str) -> bool:
        return bool(self.store.check([key]))

    def wait_for(self, key: str, timeout: float) -> Json:
        """The value, as soon as there is one; TimeoutError after `timeout` seconds."""
        wait_until(lambda: self.has(key), timeout)
        return json.loads(self.store.get(key))

    def add(self, key: str, amount: int = 0) -> int:
        """Add to a counter that all ranks share, and return it."""
        return int(self.store.add(key, amount))

    def new_connection(self) -> "StoreChannel":
        """A separate connection, since a call that hangs blocks its connection for all other calls."""
        return StoreChannel(self.store.clone())


def wait_until(ready: Callable[[], bool], timeout: float) -> None:
    """Poll until `ready` returns true; TimeoutError after `timeout` seconds. Signals are handled in between."""
    end = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)


@dataclass
class CheckContext:
    """What a check knows: this rank, the other ranks, and how to reach them."""

    rank_info: RankInfo
    channel: StoreChannel
    """For the checks. The runner uses another connection, which no check can block."""
    out: Path
    """Where runs go, or will go."""
    device: str = "auto"
    timeout: float = 60.0
    """Seconds that each check may take, and that ranks wait for each other."""
    host: str = field(default_factory=socket.gethostname)
    hosts: list[str | None] = field(default_factory=list)
    """The host of every rank; None when it did not arrive, or does not answer any more."""
    clock_port: int = 0
    """The port at which rank 0 serves the time."""
    clock_key: bytes = b""
    """What this rank proves to know there."""
    world: World | None = None
    """Set once the process group is open."""
    stuck: bool = False
    """Whether a check hangs in a thread that was left behind: then this process can only end with `os._exit`."""

    @property
    def rank(self) -> int:
        return self.rank_info.rank

    @property
    def address(self) -> str:
        """The address at which this rank reaches rank 0's host."""
        return os.environ.get("MASTER_ADDR") or self.rank_info.address or "127.0.0.1"

    @property
    def present(self) -> list[int]:
        """Ranks that arrived and still answer."""
        return [rank for rank, host in enumerate(self.hosts) if host is not None]

    @property
    def is_first_on_host(self) -> bool:
        """Whether this is the first rank of its host, which measures what is needed once for each host."""
        return self.hosts.index(self.host) == self.rank

    def connected_world(self) -> World:
        """The world, in a check that runs after the process group was opened."""
        assert self.world is not None
        return self.world


SLACK = 5.0
"""Seconds beyond a time limit that an answer may take to arrive."""
_IN_USE = ("EADDRINUSE", "address already in use")


def open_channel(rank_info: RankInfo, env: Mapping[str, str], timeout: float) -> StoreChannel:
    """The connection to the store of this launch; a failure is one sentence."""
    who, port = f"rank {rank_info.rank} on {socket.gethostname()}", env.get("MASTER_PORT", "")
    try:
        return StoreChannel(run_within(timeout + SLACK, lambda: _find_store(rank_info, env, timeout)))
    except (TimeLimitExceeded, TimeoutError, dist.DistError) as error:
        if rank_info.rank == 0 and any(text in str(error) for text in _IN_USE):
            raise RunFailed(
                f"{who} cannot open port {port}, because another program has it: set MASTER_PORT (torchrun: "
                "--master_port) to a free one, or end the job that was left behind there"
            ) from None
        address = env.get("MASTER_ADDR") or rank_info.address
        raise RunFailed(
            f"{who} found no store of rank 0 at {address}:{port} within {timeout:g} s: rank 0 was not started, "
            f"{address} is not its host, another program has the port, or a firewall blocks it; check that the "
            "name resolves here and that the port is open"
        ) from None


def _find_store(rank_info: RankInfo, env: Mapping[str, str], timeout: float) -> Store:
    """A single process has its own store. The host of a store does not wait for the others: see `collect_arrivals`."""
    if not rank_info.grouped:
        return HashStore()
    limit = timedelta(seconds=timeout)
    if rank_info.job:
        return open_store(rank_info, env, limit)
    address, port = env["MASTER_ADDR"], env["MASTER_PORT"]
    if not port.isdigit():
        raise UserError(f"MASTER_PORT={port!r} is not a port: set it to a number from 1 to 65535")
    is_host = rank_info.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not is_host:  # torch would print many errors before it gives up
        wait_until(lambda: _is_open(address, int(port)), timeout)
    store = TCPStore(address, int(port), rank_info.size, is_host, limit, wait_for_workers=False)
    attempt = PrefixStore(f"doctor/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return authenticated(attempt, store_key(rank_info, env), rank_info)


def _is_open(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2.0):
            return True
    except OSError:
        time.sleep(0.1)
        return False


def clock_key(rank_info: RankInfo, env: Mapping[str, str]) -> bytes:
    """What ranks prove to know to rank 0's clock; a single process has a key of its own."""
    return derive_key(store_key(rank_info, env), "clock") if rank_info.grouped else os.urandom(32)


def collect_arrivals(context: CheckContext, channel: StoreChannel) -> None:
    """On rank 0: wait for the other ranks, and share the list of those that arrived."""
    numbers = range(context.rank_info.size)
    channel.put("arrival/0", context.host)
    with suppress(TimeoutError):
        wait_until(lambda: all(channel.has(f"arrival/{rank}") for rank in numbers), context.timeout)
    context.hosts = [channel.wait_for(f"arrival/{r}", SLACK) if channel.has(f"arrival/{r}") else None for r in numbers]
    only_here = is_loopback(context.address) and set(context.hosts) <= {context.host, None}
    context.clock_port = ClockServer(context.clock_key, only_here=only_here).port
    channel.put("arrivals", {"hosts": context.hosts, "clock_port": context.clock_port})


def announce_arrival(context: CheckContext, channel: StoreChannel) -> None:
    """On every other rank: report the arrival, and receive the list of ranks."""
    who = f"rank {context.rank} on {context.host}"
    channel.put(f"arrival/{context.rank}", context.host)
    arrivals = wait_for_rank_0(context, channel, "arrivals")
    if arrivals["hosts"][context.rank] is None:
        raise RunFailed(
            f"{who} arrived more than {context.timeout:g} s after rank 0, which is too late: raise --timeout"
        )
    context.hosts, context.clock_port = arrivals["hosts"], arrivals["clock_port"]


def wait_for_rank_0(context: CheckContext, channel: StoreChannel, key: str) -> Json:
    """Rank 0's next message. Over a cut link even asking whether there is one may hang, hence the time limit."""
    seconds = rank_0_timeout(context)
    try:
        return run_within(seconds + SLACK, lambda: channel.wait_for(key, seconds))
    except (TimeoutError, TimeLimitExceeded):
        raise RunFailed(
            f"rank {context.rank} on {context.host} received nothing from rank 0 for {seconds:g} s: it was not "
            "started, died or hangs, or the network was cut; look at what rank 0 printed"
        ) from None


def rank_0_timeout(context: CheckContext) -> float:
    """How long a rank waits for rank 0's next message: rank 0 may itself be waiting for another rank."""
    return 2 * (context.timeout + SLACK)


def missing_ranks(context: CheckContext) -> str:
    """The sentence about ranks that did not arrive; empty when all did."""
    missing: Sequence[int] = [rank for rank, host in enumerate(context.hosts) if host is None]
    if not missing:
        return ""
    return (
        f"rank{'s' * (len(missing) > 1)} {number_ranges(missing)} did not come within {context.timeout:g} s, of "
        f"{context.rank_info.size} that {context.rank_info.launcher} announced: not started, ended early, or unable "
        f"to reach {context.address}; see what was printed there, and check the name of rank 0's host and the firewall"
    )


def leave_store(context: CheckContext, channel: StoreChannel) -> None:
    """The store may end with rank 0's process, so the other ranks leave first."""
    if context.rank > 0:
        channel.add("gone", 1)
        return
    with suppress(TimeoutError):  # they were asked to stop; a rank that hangs is ended by its launcher
        wait_until(lambda: channel.add("gone") >= len(context.present) - 1, SLACK)
