"""The world: this process among its peers, and the few ways in which they talk outside of gradients.

    world = World.join(device="auto", backend="auto", timeout=600)
    with world.together("reading the data"):     # one rank's failure is every rank's, with its message
        rows = read()
    name = world.share(name)                     # rank 0's value, everywhere

Messages are JSON over a gloo group of their own, so they never queue behind device collectives. A lone process has
no group; every method then does the obvious thing.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from samestep.core.errors import EXIT_FAILURE, UserError
from samestep.core.records import Json
from samestep.world.async_gather import AsyncGather
from samestep.world.data_parallel import DataParallel
from samestep.world.device import card, choose_backend, choose_device, too_few
from samestep.world.network_interface import choose_interface
from samestep.world.rank_discovery import RankInfo, discover
from samestep.world.rendezvous import open_store
from samestep.world.watchdog.activity import Watch

FAILURE = "samestep/failure"
"""The store's key of the first failing rank's word."""


class PeerFailed(Exception):
    """Another rank failed first; its message and its exit code are ours too."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class World:
    """Rank, size, device and groups of this process."""

    rank_info: RankInfo
    device: torch.device
    backend: str | None = None
    timeout: timedelta = timedelta(minutes=10)
    control: Any = None
    """The gloo group that carries CPU messages; None in a lone process."""
    store: Any = None
    watch: Watch = field(default_factory=Watch, repr=False)
    """What this process is doing, for the watchdog."""
    async_gather: AsyncGather = field(default_factory=AsyncGather, repr=False)
    """Small sums over all ranks that nobody waits for."""
    data_parallel: DataParallel | None = None
    """Which share of the data this process takes; None: every process takes one of its own, by its rank."""
    _meetings: int = field(default=0, repr=False)

    @property
    def rank(self) -> int:
        """This process's number among all."""
        return self.rank_info.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.rank_info.size

    @property
    def dp_rank(self) -> int:
        """The number of this process's share of the data."""
        return self.data_parallel.rank if self.data_parallel else self.rank

    @property
    def dp_size(self) -> int:
        """How many shares the data is cut into."""
        return self.data_parallel.size if self.data_parallel else self.size

    @property
    def dp_group(self) -> Any:
        """The group over which gradients are averaged; None is the default group, of all processes."""
        return self.data_parallel.group if self.data_parallel else None

    @property
    def dp_counted(self) -> bool:
        """Whether this process counts its share in sums over all processes; of several with one share, one does."""
        return self.data_parallel is None or self.data_parallel.counted

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone prints and writes."""
        return self.rank == 0

    @property
    def host(self) -> str:
        """The name of this machine."""
        return socket.gethostname()

    @classmethod
    def single(cls, device: str = "cpu") -> "World":
        """A lone process on `device`."""
        return cls(RankInfo("single", grouped=False), torch.device(device))

    @classmethod
    def meet(cls) -> "World":
        """Find the other ranks, before anything can fail: from here on one rank's failure is everyone's."""
        place = discover(os.environ)
        world = cls(place, torch.device("cpu"), timeout=timedelta(seconds=_timeout(600.0)))
        if place.job:
            world.store = open_store(place, os.environ, world.timeout)
        elif place.grouped:
            world.store, _, _ = next(iter(rendezvous("env://", timeout=world.timeout)))
        return world

    def connect(self, device: str = "auto", backend: str = "auto", timeout: float = 600.0) -> "World":
        """Choose device and backend and open the process group. `timeout` is in seconds; NCCL_TIMEOUT overrides it."""
        with self.together("choosing the device"):
            self.timeout = timedelta(seconds=_timeout(timeout))
            if self.rank_info.local_size < self.size:
                self._find_network()
            self.device = _enter(choose_device(device, self.rank_info))
            if self.store is not None and self.device.type != "cpu" and ":" not in device:
                self._claim(self.device)
            self.backend = choose_backend(backend, self.device) if self.rank_info.grouped else None
        if self.backend is not None:
            dist.init_process_group(
                _backend_spec(self.backend, self.device),
                store=PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
                device_id=self.device if self.backend == "nccl" else None,
            )
            self.control = dist.new_group(backend="gloo", timeout=self.timeout, group_desc="control")
            self.async_gather = AsyncGather(self.control)
        return self

    def _claim(self, device: torch.device) -> None:
        """No two ranks on one card, unless it was asked for by its number: each would be slow, or out of memory."""
        if self.store.add(f"samestep/card/{socket.gethostname()}/{card(device)}", 1) > 1:
            raise too_few(self.rank_info, device.type, getattr(torch, device.type).device_count())

    def _find_network(self) -> None:
        """Several hosts: have gloo listen where the others can reach it."""
        key = "samestep/address/{}"
        other = 0 if self.rank >= self.size // 2 else self.size - 1  # the first and the last rank are on two hosts

        def write_address(address: str) -> None:
            self.store.set(key.format(self.rank), address)

        master = os.environ.get("MASTER_ADDR") or self.rank_info.address
        choose_interface(master, write_address, lambda: self.store.get(key.format(other)).decode(), os.environ)

    @classmethod
    def join(cls, device: str = "auto", backend: str = "auto", timeout: float = 600.0) -> "World":
        """Meet and connect at once."""
        return cls.meet().connect(device, backend, timeout)

    def leave(self) -> None:
        """Part in good order."""
        if self.control is not None:
            dist.destroy_process_group()
            self.control = None

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Local work that may fail, followed by a meeting: if it failed on any rank, every rank raises that failure."""
        try:
            yield
        except Exception as error:
            self.report_failure(error)
            raise
        if self.store is None:
            return
        self._meetings += 1
        key = f"samestep/meeting/{self._meetings}"
        self.store.add(key, 1)
        end = time.monotonic() + self.timeout.total_seconds()
        while self.store.add(key, 0) < self.size:
            self.raise_peer_failure()
            if time.monotonic() > end:
                raise PeerFailed(f"not every rank finished {what} within {self.timeout}", EXIT_FAILURE)
            time.sleep(0.005)

    def share_through_store(self, key: str, value: Json) -> Json:
        """Rank 0's value through the store: for work inside `together`, where rank 0 may fail before it speaks."""
        if self.store is None:
            return value
        name = f"samestep/tell/{key}"
        if self.is_main:
            self.store.set(name, json.dumps(value))
            return value
        end = time.monotonic() + self.timeout.total_seconds()
        while not self.store.check([name]):
            self.raise_peer_failure()
            if time.monotonic() > end:
                raise PeerFailed(f"rank 0 did not tell {key!r} within {self.timeout}", EXIT_FAILURE)
            time.sleep(0.005)
        return json.loads(self.store.get(name))

    def report_failure(self, error: BaseException) -> None:
        """Leave word for the peers why this rank ends; the first word stands."""
        if self.store is None or isinstance(error, PeerFailed):
            return
        code = getattr(error, "exit_code", EXIT_FAILURE)
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        word = {"rank": self.rank, "host": socket.gethostname(), "text": text, "code": code}
        try:
            self.store.compare_set(FAILURE, "", json.dumps(word))
        except Exception:  # the store went with its host: there is nobody left to tell
            return

    def raise_peer_failure(self) -> None:
        """Raise what another rank reported, if one did."""
        if self.store is None:
            return
        try:
            word = json.loads(self.store.get(FAILURE)) if self.store.check([FAILURE]) else None
        except Exception:
            return
        if word and word["rank"] != self.rank:
            raise PeerFailed(f"rank {word['rank']} on {word['host']} failed: {word['text']}", word["code"])

    def share(self, value: Json, source: int = 0) -> Json:
        """The value that rank `source` gave, on every rank."""
        if self.control is None:
            return value
        data = _bytes(value if self.rank == source else None)
        size = torch.tensor([len(data)])
        dist.broadcast(size, source, group=self.control)
        data = data if self.rank == source else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, source, group=self.control)
        return _value(data)

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, by rank, on every rank."""
        if self.control is None:
            return [value]
        data = _bytes(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self.control)
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.control)
        return [_value(part[: int(size)]) for part, size in zip(parts, sizes)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(None)


def _bytes(value: Json) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _value(data: torch.Tensor) -> Json:
    return json.loads(data.numpy().tobytes())


def _timeout(configured: float) -> float:
    """Nobody else reads NCCL_TIMEOUT, though everybody sets it: here it is the process group's timeout, in seconds."""
    text = os.environ.get("NCCL_TIMEOUT")
    try:
        seconds = configured if not text else float(text)
    except ValueError:
        raise UserError(f"NCCL_TIMEOUT={text!r} is not a number of seconds") from None
    if seconds <= 0:
        raise UserError(f"the process-group timeout must be positive, not {seconds:g} seconds")
    return seconds


def _enter(device: torch.device) -> torch.device:
    """Make `device` the current one, so that nothing lands on card 0 by accident."""
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    return device


def _backend_spec(backend: str, device: torch.device) -> str:
    """CPU tensors always travel by gloo beside the device's own backend."""
    return backend if backend in ("gloo", "mpi") else f"cpu:gloo,{device.type}:{backend}"
