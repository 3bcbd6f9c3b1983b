"""The world: this process among its peers, and the few ways in which ranks communicate beside gradients.

    world = World.join(device="auto", backend="auto", timeout=600)
    with world.together("reading the data"):
        rows = read()
    name = world.share(name)

There is one way for each purpose:

- Agree: `Agreement` (agreement.py). A request of any rank, such as to stop, takes effect on all ranks at the same step.
- Share: `share` gives one rank's value to all. `share_through_store` does the same before there is a process group, or
  where rank 0 may fail before it gets there.
- Gather: `gather` gives every rank's value to all; `exchange_with_main` gives them to rank 0, which answers each rank.
  `async_gather` is for small sums that no rank waits for.
- Fail together: under `together` (rank.py) a failure of one rank ends all ranks, with its message. `run_on_all_ranks`
  is the recoverable sibling: all ranks raise the same failure, and the caller may go on.

Messages are JSON over a gloo group of their own (messages.py), so they never queue behind device collectives. Process
groups are opened by `open_group`, which proves their connections. In a lone process there is no group, and every method
returns what this process passes in.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from samestep.core.json_files import Json
from samestep.core.output import print_safely
from samestep.world.activity import ActivityTracker
from samestep.world.async_gather import AsyncGather
from samestep.world.device import (
    backend_spec,
    choose_backend,
    choose_device,
    claim_card,
    group_timeout,
    notes,
    set_current,
)
from samestep.world.failures import failure_record, raise_first
from samestep.world.messages import Messages
from samestep.world.network_interface import listen_where_needed
from samestep.world.proved_groups import NotProved, prove_connections, uses_gloo
from samestep.world.rank import Rank
from samestep.world.rank_discovery import RankInfo, discover
from samestep.world.rendezvous import open_store

WAIT_AFTER_FAILURE = 10.0
"""Seconds that a rank whose work failed waits for the others, which may be waiting for it inside the same work."""
T = TypeVar("T")
_STORES_OF_GROUPS: list[Any] = []
"""A process group holds the C++ part of its store only; without the Python part, it could not use it."""


@dataclass(frozen=True)
class DataParallel:
    """Which share of the data a process takes, and the group that averages gradients.

    Without model parallelism every process takes its own share. Where several processes compute one model together
    (tensor parallelism, or copies of it), those of a model-parallel group take the same one, and one of them counts it:

        ranks 0 1 2 3, model-parallel groups [0, 1] and [2, 3], data-parallel groups [0, 2] and [1, 3]
        rank  0 1 2 3
        share 0 0 1 1    DataParallel.over(group, counted=rank % 2 == 0)
    """

    rank: int
    """The number of its share; also its rank in the group."""
    size: int
    """How many shares the global batch is cut into."""
    group: Any = None
    """The processes that hold the other shares for the same part of the model; None: all processes."""
    counted: bool = True
    """Whether it is the one of its model-parallel group that counts the share in sums over all processes."""

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"data-parallel rank {self.rank} of {self.size}"

    @classmethod
    def over(cls, group: Any, counted: bool) -> "DataParallel":
        """The coordinates that follow from a data-parallel process group; `World.open_group` opens one."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group, counted)


@dataclass
class World(Rank):
    """Rank, size, device and groups of this process."""

    device: torch.device
    """Where this process computes."""
    backend: str | None = None
    """The library that runs collectives on tensors, such as `gloo` or `nccl`; None in a lone process."""
    control: Any = None
    """The gloo group that carries CPU messages; None in a lone process."""
    messages: Messages | None = field(default=None, repr=False)
    """The messages of that group."""
    outcomes: Messages | None = field(default=None, repr=False)
    """Messages of a group of their own: how work that may itself communicate has ended on every rank."""
    activity: ActivityTracker = field(default_factory=ActivityTracker, repr=False)
    """What this process is doing, for the watchdog."""
    async_gather: AsyncGather = field(default_factory=AsyncGather, repr=False)
    """Small sums over all ranks that no rank waits for."""
    data_parallel: DataParallel | None = None
    """Which share of the data this process takes; None: every process takes one of its own, by its rank."""

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

    @classmethod
    def single(cls, device: str = "cpu") -> "World":
        """A lone process on `device`."""
        return cls(RankInfo("single", grouped=False), torch.device(device))

    @classmethod
    def rendezvous(cls, timeout: float | None = None) -> "World":
        """Find the other ranks, within `timeout` seconds (600): from here on a failure of one rank reaches all."""
        info = discover(os.environ)
        world = cls(info, torch.device("cpu"), timeout=timedelta(seconds=timeout or group_timeout(600.0)))
        if info.grouped:
            world.store = open_store(info, os.environ, world.timeout)
        return world

    def connect(self, device: str = "auto", backend: str = "auto", timeout: float = 600.0) -> "World":
        """Choose device and backend and open the process group. `timeout` is in seconds; NCCL_TIMEOUT overrides it."""
        with self.together("choosing the device"):
            self.timeout = timedelta(seconds=group_timeout(timeout))
            listen_where_needed(self.rank_info, self.store, os.environ)
            self.device = set_current(choose_device(device, self.rank_info))
            if self.store is not None and self.device.type != "cpu" and ":" not in device:
                claim_card(self.device, self.rank_info, self.store)
            self.backend = choose_backend(backend, self.device) if self.rank_info.grouped else None
        if self.backend is not None:
            for note in notes(backend, self.backend, self.device, self.rank_info) if self.is_main else []:
                print_safely(f"samestep: {note}", sys.stderr)
            _STORES_OF_GROUPS.append(self.store)
            dist.init_process_group(
                backend_spec(self.backend, self.device),
                store=PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
                device_id=self.device if self.backend == "nccl" else None,
            )
            self.open_messages()
        return self

    def open_messages(self) -> None:
        """Open the group of messages, once there is a default group."""
        self._prove(dist.group.WORLD)
        self._use_for_messages(self.open_group("control"))
        self.outcomes = Messages(self.open_group("outcomes"), self.store.derive_key("messages"))
        self.async_gather = AsyncGather(self.control, self.activity)

    def with_own_messages(self, name: str, timeout: timedelta) -> "World":
        """This world with another group for messages, and for nothing else: for a thread that sends some while this
        one does."""
        group = self.open_group(name, timeout=timeout)
        world = replace(self)
        world._use_for_messages(group)
        return world

    def open_group(self, name: str, ranks: Sequence[int] | None = None, timeout: timedelta | None = None) -> Any:
        """A gloo group of some ranks, or all, whose connections are proved. All ranks call it."""
        chosen = None if ranks is None else list(ranks)
        group = dist.new_group(chosen, timeout=timeout or self.timeout, backend="gloo", group_desc=name)
        self._prove(group)
        return group

    def _prove(self, group: Any) -> None:
        """Make sure that a group's connections lead to its ranks."""
        if self.size == 1:
            return
        self.meet("opened the connections of a process group")  # the time to prove them runs from here
        with self.together("proving the connections of a process group"):
            if group is not dist.GroupMember.NON_GROUP_MEMBER and uses_gloo(group):
                try:
                    prove_connections(group, self.store.derive_key("connections"))
                except NotProved:
                    self.raise_peer_failure()  # the rank that a stranger answered knows more than the displaced one
                    raise

    def _use_for_messages(self, group: Any) -> None:
        self.control, self.messages = group, Messages(group, self.store.derive_key("messages"))

    @classmethod
    def join(cls, device: str = "auto", backend: str = "auto", timeout: float = 600.0) -> "World":
        """`rendezvous` and `connect` in one call."""
        return cls.rendezvous().connect(device, backend, timeout)

    def leave(self) -> None:
        """Close the process group in good order."""
        if self.control is not None:
            dist.destroy_process_group()
            self.control = self.messages = self.outcomes = None
            _STORES_OF_GROUPS.clear()

    def share(self, value: Json, source: int = 0) -> Json:
        """The value of rank `source`, on every rank."""
        return self.messages.share(value, source) if self.messages else value

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, by rank, on every rank."""
        return self.messages.gather(value) if self.messages else [value]

    def run_on_all_ranks(self, doing: str, work: Callable[[], Json]) -> list[Json]:
        """What `work` returned on every rank, by rank; if it failed anywhere, every rank raises that same failure.

        `work` must not communicate. Unlike `together` a failure here leaves no mark, so a caller may carry on.
        """
        outcome, failure = self._outcome(work)
        outcomes = self.gather(outcome)
        raise_first(outcomes, failure, doing)
        return [outcome["value"] for outcome in outcomes]

    def try_together(self, doing: str, work: Callable[[], T]) -> tuple[T | None, Exception | None]:
        """What `work` returned here, and the failure that all ranks share if it failed on any of them.

        `work` may communicate, so ranks may wait inside for one that failed. That one waits some seconds for the
        others; if they do not come, it raises its failure at once, for nothing can be done together any more.
        """
        value, failure = None, None
        try:
            value = work()
        except Exception as error:
            failure = error
        if self.outcomes is None:
            return value, failure
        own = None if failure is None else failure_record(failure, self.rank)
        try:
            failures = self.outcomes.gather(own, within=None if failure is None else WAIT_AFTER_FAILURE)
        except RuntimeError:
            if failure is not None:
                raise failure from None
            raise
        try:
            raise_first([found for found in failures if found], failure, doing)
        except Exception as shared:
            failure = shared
        return value, failure

    def exchange_with_main(
        self, doing: str, work: Callable[[], Json], answer: Callable[[list[Json]], Sequence[Json]]
    ) -> Json:
        """Rank 0 gets what `work` returned on every rank, and `answer` makes of it one value for each, by rank.

        If either failed anywhere, every rank raises that same failure. For what is too much to be gathered everywhere.
        """
        outcome, failure = self._outcome(work)
        outcomes = self.messages.gather_to_main(outcome) if self.messages else [outcome]
        answers: list[dict[str, Json]] = []
        if self.is_main:
            failed = next((found for found in outcomes if "text" in found), None)
            if failed is None:
                made, failure = self._outcome(lambda: list(answer([found["value"] for found in outcomes])))
                failed = made if failure else None
            answers = [failed] * self.size if failed else [{"value": value} for value in made["value"]]
        own = self.messages.scatter_from_main(answers) if self.messages else answers[0]
        raise_first([own], failure, doing)
        return own["value"]

    def _outcome(self, work: Callable[[], Json]) -> tuple[dict[str, Json], Exception | None]:
        """What some work returned, for the other ranks; or why it failed, and the failure itself."""
        try:
            return {"value": work()}, None
        except Exception as error:
            return failure_record(error, self.rank), error

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(None)
