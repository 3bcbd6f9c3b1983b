"""How data workers pass their batches to the rank: through shared memory, and never into the void.

A worker's batch is moved to shared memory by a thread of its queue. If that fails, because the memory is full or no
more files may be open, multiprocessing prints a traceback and drops the batch, and the rank would wait for it for
ever. Here the failure takes the place of the batch.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkContext
from multiprocessing.queues import Queue
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from samestep.core.disk_space import SHARED_MEMORY, is_disk_full, naming_file, shared_memory_full
from samestep.core.errors import RunFailed, first_line
from samestep.core.open_files import is_too_many_files, too_many_open_files

_FULL = "No space left on device"
_ENDED = re.compile(r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)")


# An iterator over workers whose construction fails would print a traceback about itself when it is deleted.
_MultiProcessingDataLoaderIter._shutdown = True


class WorkerLost(RunFailed):
    """A data worker ended, or could not pass on what it had loaded."""


class LoaderContext(ForkContext):
    """Starts data workers by a fork: a process that a fork server started would start a fork server too, seconds each
    time. Its queues lose nothing."""

    def Queue(self, maxsize: int = 0) -> "Queue[Any]":  # noqa: N802
        """A queue for torch's loader."""
        return _CompleteQueue(maxsize, ctx=self.get_context())


class _CompleteQueue(Queue):
    """A queue that passes on why an item could not be."""

    def _on_queue_feeder_error(self, error: BaseException, item: Any) -> None:
        number = item[0] if isinstance(item, tuple) else None
        what = f"a data worker could not pass on its batch ({type(error).__name__}: {first_line(error)})"
        self.put((number, resource_error(error) or WorkerLost(what)))


def resource_error(error: BaseException) -> Exception | None:
    """What a worker lacks, as an error that its rank can raise; None: the worker failed for another reason."""
    if is_disk_full(error):
        return error if error.filename else shared_memory_full()
    if isinstance(error, RuntimeError) and _FULL in str(error) and "(shm)" in str(error):
        return shared_memory_full()
    return too_many_open_files() if is_too_many_files(error) else None


@contextmanager
def naming_shared_memory() -> Iterator[None]:
    """While workers are started and asked: what has no space there is shared memory, which no error names."""
    with naming_file(SHARED_MEMORY / "workers"):
        yield


def lost_worker(error: BaseException) -> WorkerLost | None:
    """The sentence for a worker that ended; torch raises its error wherever the rank just is. None for other errors."""
    if not isinstance(error, RuntimeError) or not _ENDED.match(str(error)):
        return None
    return WorkerLost(
        f"{first_line(error).rstrip('.')}; perhaps memory ran out, or shared memory (/dev/shm): use fewer data workers "
        "(num_workers), or smaller batches, and resume"
    )
