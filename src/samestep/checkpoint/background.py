"""Saving while training goes on.

    with Saver(store) as saver:
        saver.reserve(state)                # takes the memory for copies
        saver.save(step, state, about)      # returns as soon as the state is copied
        ...                                 # training changes the state; a thread writes the copy
        saver.finish(step, state, about)    # at the end: waits, and tries again what failed

One save is under way at a time; the next one waits for it. The thread talks to those of the other ranks over a group
of its own. A save fails on all ranks alike, so they count alike, without a word more, where they wait anyhow.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from samestep.checkpoint.host_copies import Buffers
from samestep.checkpoint.state import Stateful
from samestep.checkpoint.store import Snapshot, Store
from samestep.core.errors import DiskFailed, RunFailed, UserError
from samestep.core.records import Json

PATIENCE = timedelta(minutes=30)
"""How long at least ranks wait for each other's files: disks are slower than collectives, and nobody stands still."""
GRACE = 10.0
"""Seconds that a run which fails gives the save under way to complete."""
YIELD = 0.01
"""Seconds that the thread gives the training to go on before it asks for the interpreter itself."""
LONG = 1.0
"""Seconds of waiting that are worth a word."""
_REMEDY = "earlier checkpoints are untouched, so make room or mend the disk, and start the run again to resume"
_log = logging.getLogger("samestep.checkpoint")


@dataclass
class PendingSave:
    """One save, from its state being taken to its end."""

    step: int
    committed: bool = False
    """Whether it is a checkpoint on the disk now."""
    failure: Exception | None = None
    ended: bool = False
    announced: bool = False
    thread: threading.Thread | None = None


def ignore(what: object) -> None:
    """For whoever does not want to be told."""


class Saver:
    """Saves the state of a run into a store. All ranks call every method at the same point, but for `poll`."""

    def __init__(
        self,
        store: Store,
        *,
        background: bool = True,
        max_failures: int = 3,
        taken: int | None = None,
        told: Callable[[PendingSave], None] = ignore,
        pause: float = 1.0,
    ) -> None:
        """`taken`: the step at which there is nothing to save, since the state came from there.

        `told` hears on each rank, in the thread that trains, how a save ended. `pause`: seconds before a last save that
        failed is tried again; twice as long each further time.
        """
        if max_failures < 1:
            raise UserError(f"max_failures is {max_failures}; set it to 1 to stop at the first save that fails")
        self._background, self._max, self._told, self._pause = background, max_failures, told, pause
        self._world, self._group = store.world, None
        if background and store.world.control is not None:
            patience = max(store.world.timeout, PATIENCE)
            self._group = dist.new_group(backend="gloo", timeout=patience, group_desc="saves")
            store = store.over(replace(store.world, control=self._group))
        self._store = store
        self._buffers = Buffers()
        self._flight: PendingSave | None = None
        self._failures = 0
        self.taken = taken
        """The step of the state that was handed over last, unless it is known that saving it failed."""

    def reserve(self, state: Mapping[str, Stateful]) -> None:
        """Take the memory for copies of this state before there is a loop that would wait for it."""
        if self._background:
            self._buffers.reserve(self._store.stage(0, state, {}).tensors)

    def save(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        then: Callable[[Path], None] = ignore,
    ) -> None:
        """Take the state and have it saved; `then` is called with the checkpoint on rank 0, and may fail like a save.

        Waits for the save before this one, and raises DiskFailed when too many in a row have failed.
        """
        self.wait()
        goes_on = self._failures + 1 < self._max
        hope = "training goes on, and the next save tries again" if goes_on else "the run will stop at its next save"
        self._launch(step, state, about, then, hope)
        if not self._background:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way; raises DiskFailed when too many in a row have failed."""
        failure = self._landed()
        if failure is not None and self._failures >= self._max:
            raise DiskFailed(_stopping(failure, self._failures))

    def finish(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        then: Callable[[Path], None] = ignore,
    ) -> None:
        """Have this state on the disk when this returns; tries as often as failures are allowed, then DiskFailed."""
        self._landed()
        tries = 0
        while self.taken != step:
            tries += 1
            self._launch(step, state, about, then, "it is tried again" if tries < self._max else "")
            failure = self._landed()
            if failure is not None and tries == self._max:
                raise DiskFailed(_stopping(failure, tries))
            if failure is not None:
                time.sleep(self._pause * 2 ** (tries - 1))

    def poll(self) -> None:
        """Pass on how the save under way ended, if it has; waits for nobody, so any rank may call it at any time."""
        if self._flight is not None and self._flight.ended:
            self._announce(self._flight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            assert self._flight is None, "finish or wait before leaving"
            if self._group is not None:
                self._world.barrier()  # nobody closes a connection that another still reads from
                dist.destroy_process_group(self._group)
        elif isinstance(error, Exception) and self._flight is not None and self._flight.thread is not None:
            # other ranks may be gone, so the thread may wait for ever; it is a daemon and ends with the process
            self._flight.thread.join(GRACE)
            self.poll()

    def _launch(
        self,
        step: int,
        state: Mapping[str, Stateful],
        about: Mapping[str, Json],
        then: Callable[[Path], None],
        hope: str,
    ) -> None:
        assert self._flight is None, "one save at a time"
        snapshot = self._store.stage(step, state, about)
        flight = self._flight = PendingSave(step)
        self.taken = step
        if not self._background:
            self._fly(flight, snapshot, lambda: None, then, hope)
            return
        copies = self._buffers.copy(snapshot.tensors)
        work = (flight, replace(snapshot, tensors=copies.tensors), copies.wait, then, hope)
        flight.thread = threading.Thread(target=self._fly_beside, args=work, name=f"save of step {step}", daemon=True)
        flight.thread.start()

    def _fly_beside(self, *work: Any) -> None:
        with self._world.activity.side_thread("save", "save"):
            self._fly(*work)

    def _fly(
        self,
        flight: PendingSave,
        snapshot: Snapshot,
        copied: Callable[[], None],
        then: Callable[[Path], None],
        hope: str,
    ) -> None:
        """Write and commit; in the background this is the thread."""
        world = self._store.world
        try:
            copied()
            if flight.thread is not None:
                time.sleep(YIELD)
            path = self._store.commit(snapshot, self._store.write(snapshot))
            flight.committed = True
            world.run_on_all_ranks(f"writing weights of {path}", lambda: then(path) if world.is_main else None)
        except Exception as failure:
            flight.failure = failure
            if world.is_main and hope and isinstance(failure, RunFailed):
                _log.warning("%s; %s", failure, hope)
        flight.ended = True

    def _landed(self) -> RunFailed | None:
        """Wait for the save under way and count its outcome; what is no failed write is raised."""
        flight = self._flight
        if flight is None:
            return None
        if flight.thread is not None:
            began = time.monotonic()
            flight.thread.join()
            waited = time.monotonic() - began
            if waited > LONG:
                _log.info("waited %.1f s for the save of step %d", waited, flight.step)
        self._flight = None
        self._announce(flight)
        if flight.failure is None:
            self._failures = 0
            return None
        self.taken = None
        self._failures += 1
        if not isinstance(flight.failure, RunFailed):
            raise flight.failure
        return flight.failure

    def _announce(self, flight: PendingSave) -> None:
        if not flight.announced:
            flight.announced = True
            self._told(flight)


def _stopping(failure: RunFailed, times: int) -> str:
    often = f" ({times} failures in a row)" if times > 1 else ""
    return f"{failure}{often}; {_REMEDY}"
