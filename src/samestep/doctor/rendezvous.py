"""How ranks find each other and talk for `samestep doctor`: through the rendezvous store alone.

No process group is needed for that, so a network that carries no collectives can be told apart from a rank that is
not there. Every wait has a limit.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json
from samestep.doctor.clock import ClockServer
from samestep.doctor.findings import ranges
from samestep.doctor.time_limit import Late, within
from samestep.world.rank_discovery import RankInfo
from samestep.world.rendezvous import open_store
from samestep.world.world import World

_LOOK = 0.01


class StoreChannel:
    """A connection to the store."""

    def __init__(self, store: Any) -> None:  # torch's stubs do not know all methods of a store
        self.store = store

    def tell(self, key: str, value: Json) -> None:
        """Leave a value."""
        self.store.set(key, json.dumps(value))

    def is_told(self, key: str) -> bool:
        """Whether there is a value."""
        return bool(self.store.check([key]))

    def hear(self, key: str, patience: float) -> Json:
        """A value that is, or will be, there; TimeoutError after `patience` seconds."""
        wait_until(lambda: self.is_told(key), patience)
        return json.loads(self.store.get(key))

    def count(self, key: str, by: int = 0) -> int:
        """A number that ranks raise."""
        return int(self.store.add(key, by))

    def another(self) -> "StoreChannel":
        """A connection of its own: one that hangs keeps all others from using it."""
        return StoreChannel(self.store.clone())


def wait_until(ready: Callable[[], bool], patience: float) -> None:
    """Look until it is so; TimeoutError after `patience` seconds. Signals are heeded in between."""
    end = time.monotonic() + patience
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_LOOK)


@dataclass
class CheckContext:
    """Who this rank is, who else is there, and how to reach them."""

    place: RankInfo
    line: StoreChannel
    """For the exams. The examination itself goes over another one, which no exam can block."""
    out: Path
    """Where runs go, or will go."""
    device: str = "auto"
    timeout: float = 60.0
    """Seconds that every wait has."""
    host: str = field(default_factory=socket.gethostname)
    hosts: list[str | None] = field(default_factory=list)
    """Of every rank; None: it did not come, or does not answer any more."""
    beacon: int = 0
    """The port at which rank 0 tells the time."""
    world: World | None = None
    """Once the process group is open."""
    stuck: bool = False
    """Whether an exam hangs in a thread that was left behind: then this process can only be ended by force."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.place.rank

    @property
    def address(self) -> str:
        """At which this rank reaches rank 0's host."""
        return os.environ.get("MASTER_ADDR") or self.place.address or "127.0.0.1"

    @property
    def present(self) -> list[int]:
        """The ranks that came and answer."""
        return [rank for rank, host in enumerate(self.hosts) if host is not None]

    @property
    def speaks_for_host(self) -> bool:
        """Whether this is the first rank of its host, to measure there what need not be measured twice."""
        return self.hosts.index(self.host) == self.rank

    def joined(self) -> World:
        """The world, in an exam that comes after the group was opened."""
        assert self.world is not None
        return self.world


SLACK = 5.0
"""Seconds beyond a limit that an answer may be under way."""
_IN_USE = ("EADDRINUSE", "address already in use")


def find_line(place: RankInfo, env: Mapping[str, str], timeout: float) -> StoreChannel:
    """The connection to the store of this launch; a failure is one sentence."""
    who, port = f"rank {place.rank} on {socket.gethostname()}", env.get("MASTER_PORT", "")
    try:
        return StoreChannel(within(timeout + SLACK, lambda: _find_store(place, env, timeout)))
    except (Late, TimeoutError, dist.DistError) as error:
        if place.rank == 0 and any(word in str(error) for word in _IN_USE):
            raise RunFailed(
                f"{who} cannot open port {port}, because another program has it: set MASTER_PORT (torchrun: "
                "--master_port) to a free one, or end the job that was left behind there"
            ) from None
        address = env.get("MASTER_ADDR") or place.address
        raise RunFailed(
            f"{who} found no store of rank 0 at {address}:{port} within {timeout:g} s: rank 0 was not started, "
            f"{address} is not its host, another program has the port, or a firewall stands between; check that the "
            "name resolves here and that the port is open"
        ) from None


def _find_store(place: RankInfo, env: Mapping[str, str], timeout: float) -> Store:
    """A lone process has a store of its own. Who hosts a store does not wait for the others there: see `call_roll`."""
    if not place.grouped:
        return HashStore()
    limit = timedelta(seconds=timeout)
    if place.job:
        return PrefixStore("doctor", open_store(place, env, limit))
    address, port = env["MASTER_ADDR"], env["MASTER_PORT"]
    if not port.isdigit():
        raise UserError(f"MASTER_PORT={port!r} is no port: set it to a number from 1 to 65535")
    is_host = place.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not is_host:  # torch would fill the screen before it gives up
        wait_until(lambda: _is_open(address, int(port)), timeout)
    store = TCPStore(address, int(port), place.size, is_host, limit, wait_for_workers=False)
    return PrefixStore(f"doctor/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _is_open(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2.0):
            return True
    except OSError:
        time.sleep(0.1)
        return False


def call_roll(seat: CheckContext, line: StoreChannel) -> None:
    """Rank 0's part: wait for the others, and tell everybody who is there."""
    numbers = range(seat.place.size)
    line.tell("arrival/0", seat.host)
    with suppress(TimeoutError):
        wait_until(lambda: all(line.is_told(f"arrival/{rank}") for rank in numbers), seat.timeout)
    seat.hosts = [line.hear(f"arrival/{r}", SLACK) if line.is_told(f"arrival/{r}") else None for r in numbers]
    seat.beacon = ClockServer().port
    line.tell("roll", {"hosts": seat.hosts, "beacon": seat.beacon})


def answer_roll(seat: CheckContext, line: StoreChannel) -> None:
    """Every other rank's part."""
    who = f"rank {seat.rank} on {seat.host}"
    line.tell(f"arrival/{seat.rank}", seat.host)
    roll = hear_rank_0(seat, line, "roll")
    if roll["hosts"][seat.rank] is None:
        raise RunFailed(f"{who} came more than {seat.timeout:g} s after rank 0, which is too late: raise --timeout")
    seat.hosts, seat.beacon = roll["hosts"], roll["beacon"]


def hear_rank_0(seat: CheckContext, line: StoreChannel, key: str) -> Json:
    """Rank 0's next word; over a cut link not even the question whether there is one comes back."""
    seconds = patience(seat)
    try:
        return within(seconds + SLACK, lambda: line.hear(key, seconds))
    except (TimeoutError, Late):
        raise RunFailed(
            f"rank {seat.rank} on {seat.host} heard nothing of rank 0 for {seconds:g} s: it was not started, died or "
            "hangs, or the network was cut; look at what rank 0 printed"
        ) from None


def patience(seat: CheckContext) -> float:
    """How long a rank waits for rank 0's next word: rank 0 may itself be waiting for somebody."""
    return 2 * (seat.timeout + SLACK)


def absence(seat: CheckContext) -> str:
    """The sentence about ranks that did not come; empty when all did."""
    missing: Sequence[int] = [rank for rank, host in enumerate(seat.hosts) if host is None]
    if not missing:
        return ""
    return (
        f"rank{'s' * (len(missing) > 1)} {ranges(missing)} did not come within {seat.timeout:g} s, of "
        f"{seat.place.size} that {seat.place.launcher} announced: not started, ended early, or unable to reach "
        f"{seat.address}; see what was printed there, and check the name of rank 0's host and the firewall"
    )


def part(seat: CheckContext, line: StoreChannel) -> None:
    """The store may go with rank 0's process: the others leave first."""
    if seat.rank > 0:
        line.count("gone", 1)
        return
    with suppress(TimeoutError):  # they were told; whoever hangs is ended by its launcher
        wait_until(lambda: line.count("gone") >= len(seat.present) - 1, SLACK)
