"""Saving while training goes on.

    with Saver(store) as saver:
        saver.reserve(state)                # allocates the memory for copies
        saver.save(step, state, about)      # returns as soon as the state is copied
        ...                                 # training changes the state; a thread writes the copy
        saver.finish(step, state, about)    # at the end: waits, and retries a save that failed

One save is pending at a time; the next one waits for it. The thread communicates with those of the other ranks over a
process group of its own. A save fails on all ranks or on none, so all ranks count the same failures without a message.

Tensors are copied, so that training may change them while they are being written. The memory is reused by the next
save. For tensors on a GPU it is pinned: the copies are queued on the device's stream after the step that made the
values and before the one that changes them, so only the thread that writes waits.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from samestep.checkpoint.commit import Snapshot
from samestep.checkpoint.state import Stateful
from samestep.checkpoint.store import Store
from samestep.core.errors import DiskFailed, RunFailed, UserError
from samestep.core.json_files import Json
from samestep.world.messages import Tampered


@dataclass(frozen=True)
class Copies:
    """Copies in host memory, complete once `wait` has returned."""

    tensors: dict[str, torch.Tensor]
    _events: list[torch.Event] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for copies that a device has not finished; any thread may call it."""
        for event in self._events:
            event.synchronize()


class Buffers:
    """The memory of the copies. A copy is valid until the next one is made."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate the memory now and touch every page of it, so that the first copy is as fast as later ones."""
        for name, tensor in tensors.items():
            self._kept[name] = self._buffer(name, _local(tensor)).zero_()

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Copies:
        """Copies of tensors by name; of a sharded one, of this rank's shard."""
        local = {name: _local(tensor) for name, tensor in tensors.items()}
        self._kept = {name: self._buffer(name, part) for name, part in local.items()}
        for name, part in local.items():
            self._kept[name].copy_(part, non_blocking=True)
        events = []
        for device in {part.device for part in local.values()} - {torch.device("cpu")}:
            events.append(torch.Event(device))
            events[-1].record(torch.accelerator.current_stream(device))
        return Copies({name: _like(tensor, self._kept[name]) for name, tensor in tensors.items()}, events)

    def _buffer(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Memory for a copy: that of the last save if it has the same shape and type."""
        known = self._kept.get(name)
        if known is not None and known.shape == part.shape and known.dtype == part.dtype:
            return known
        pin = part.device.type != "cpu" and part.numel() > 0
        return torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pin)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """The copy of a shard is a DTensor that still says what it is a shard of, though it is not on the mesh's device."""
    return DTensor(copy, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else copy


MIN_TIMEOUT = timedelta(minutes=30)
"""The least time that ranks wait for each other's files: disks are slower than collectives, and training goes on."""
GRACE = 10.0
"""Seconds that a failing run gives the pending save to complete."""
YIELD = 0.01
"""Seconds that the thread sleeps first, so that training gets the interpreter."""
LONG_WAIT = 1.0
"""Waits of more seconds than this are logged."""
_REMEDY = "earlier checkpoints are untouched, so free some space or fix the disk, and start the run again to resume"
_log = logging.getLogger("samestep.checkpoint")


@dataclass
class PendingSave:
    """One save, from the snapshot to its end."""

    step: int
    committed: bool = False
    """Whether it is a checkpoint on the disk now."""
    failure: Exception | None = None
    ended: bool = False
    reported: bool = False
    """Whether `on_end` was called."""
    thread: threading.Thread | None = None


def do_nothing(argument: object) -> None:
    """The default of callbacks."""


class Saver:
    """Saves the state of a run into a store. All ranks call every method at the same point, except `poll`."""

    def __init__(
        self,
        store: Store,
        *,
        background: bool = True,
        max_failures: int = 3,
        last_step: int | None = None,
        on_end: Callable[[PendingSave], None] = do_nothing,
        pause: float = 1.0,
    ) -> None:
        """`last_step`: the step whose checkpoint the state was loaded from, so that it needs no save.

        `on_end` is called with each save that has ended, on every rank, in the thread that trains. `pause`: seconds
        before a last save that failed is retried; it doubles each time.
        """
        if max_failures < 1:
            raise UserError(f"max_failures is {max_failures}; set it to 1 to stop at the first save that fails")
        self._background, self._max, self._on_end, self._pause = background, max_failures, on_end, pause
        self._world, self._group = store.world, None
        if background and store.world.control is not None:
            world = store.world.with_own_messages("saves", max(store.world.timeout, MIN_TIMEOUT))
            store, self._group = store.with_world(world), world.control
        self._store = store
        self._buffers = Buffers()
        self._pending: PendingSave | None = None
        self._failures = 0
        self.last_step = last_step
        """The step of the last state that is saved or being saved; None after a save that failed."""

    def reserve(self, state: Mapping[str, Stateful]) -> None:
        """Allocate the memory for copies of this state now, so that no save in the loop has to wait for it."""
        if self._background:
            self._buffers.reserve(self._store.take_snapshot(0, state, {}).tensors)

    def save(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        after_commit: Callable[[Path], None] = do_nothing,
    ) -> None:
        """Copy the state and have it saved. `after_commit` is called with the checkpoint on rank 0; if it raises, the
        save counts as failed.

        Waits for the save before this one, and raises DiskFailed when too many in a row have failed.
        """
        self.wait()
        goes_on = self._failures + 1 < self._max
        if_it_fails = (
            "training goes on, and the next save tries again" if goes_on else "the run will stop at its next save"
        )
        self._start(step, state, about, after_commit, if_it_fails)
        if not self._background:
            self.wait()

    def wait(self) -> None:
        """Wait for the pending save; raises DiskFailed when too many in a row have failed."""
        failure = self._end_pending()
        if failure is not None and self._failures >= self._max:
            raise DiskFailed(_stop_message(failure, self._failures))

    def finish(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        after_commit: Callable[[Path], None] = do_nothing,
    ) -> None:
        """Have this state on the disk when this returns; tries `max_failures` times, then raises DiskFailed."""
        self._end_pending()
        tries = 0
        while self.last_step != step:
            tries += 1
            self._start(step, state, about, after_commit, "it is tried again" if tries < self._max else "")
            failure = self._end_pending()
            if failure is not None and tries == self._max:
                raise DiskFailed(_stop_message(failure, tries))
            if failure is not None:
                time.sleep(self._pause * 2 ** (tries - 1))

    def poll(self) -> None:
        """Report the pending save if it has ended. Does not wait, so any rank may call it at any time."""
        if self._pending is not None and self._pending.ended:
            self._report(self._pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            assert self._pending is None, "finish or wait before leaving"
            if self._group is not None:
                self._world.barrier()  # no rank may close a connection that another one still reads from
                dist.destroy_process_group(self._group)
        elif isinstance(error, Exception) and self._pending is not None and self._pending.thread is not None:
            # other ranks may be gone, so the thread may wait forever; it is a daemon and ends with the process
            self._pending.thread.join(GRACE)
            self.poll()

    def _start(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        after_commit: Callable[[Path], None],
        if_it_fails: str,
    ) -> None:
        """`if_it_fails`: what the warning about a failure says happens next; empty for no warning."""
        assert self._pending is None, "one save at a time"
        snapshot = self._store.take_snapshot(step, state, about)
        pending = self._pending = PendingSave(step)
        self.last_step = step
        if not self._background:
            self._write(pending, snapshot, lambda: None, after_commit, if_it_fails)
            return
        copies = self._buffers.copy(snapshot.tensors)
        args = (pending, replace(snapshot, tensors=copies.tensors), copies.wait, after_commit, if_it_fails)
        pending.thread = threading.Thread(target=self._in_thread, args=args, name=f"save of step {step}", daemon=True)
        pending.thread.start()

    def _in_thread(self, *args: Any) -> None:
        with self._world.activity.side_thread("save", "save"):
            self._write(*args)

    def _write(
        self,
        pending: PendingSave,
        snapshot: Snapshot,
        wait_for_copies: Callable[[], None],
        after_commit: Callable[[Path], None],
        if_it_fails: str,
    ) -> None:
        """Write and commit; in the background this runs in the thread."""
        world = self._store.world
        try:
            wait_for_copies()
            if pending.thread is not None:
                time.sleep(YIELD)
            path = self._store.commit(snapshot, self._store.write(snapshot))
            pending.committed = True
            world.run_on_all_ranks(f"writing weights of {path}", lambda: after_commit(path) if world.is_main else None)
        except Exception as failure:
            pending.failure = failure
            if world.is_main and if_it_fails and _is_recoverable(failure):
                _log.warning("%s; %s", failure, if_it_fails)
        pending.ended = True

    def _end_pending(self) -> RunFailed | None:
        """Wait for the pending save and return its failure, counted; a failure other than RunFailed is raised."""
        pending = self._pending
        if pending is None:
            return None
        if pending.thread is not None:
            began = time.monotonic()
            pending.thread.join()
            waited = time.monotonic() - began
            if waited > LONG_WAIT:
                _log.info("waited %.1f s for the save of step %d", waited, pending.step)
        self._pending = None
        self._report(pending)
        if pending.failure is None:
            self._failures = 0
            return None
        self.last_step = None
        self._failures += 1
        if not _is_recoverable(pending.failure):
            raise pending.failure
        return pending.failure

    def _report(self, pending: PendingSave) -> None:
        if not pending.reported:
            pending.reported = True
            self._on_end(pending)


def _is_recoverable(failure: Exception) -> TypeGuard[RunFailed]:
    """Whether a save failed on all ranks alike, so that the next one may be tried."""
    return isinstance(failure, RunFailed) and not isinstance(failure, Tampered)


def _stop_message(failure: RunFailed, times: int) -> str:
    often = f" ({times} failures in a row)" if times > 1 else ""
    return f"{failure}{often}; {_REMEDY}"
