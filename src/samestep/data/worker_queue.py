"""How data workers pass their batches to the rank: through shared memory, and never into the void.

A worker's batch is moved to shared memory by a thread of its queue. If that fails, because the memory is full or no
more files may be open, multiprocessing prints a traceback and drops the batch, and the rank would wait for it for
ever. Here the failure takes the place of the batch.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkContext
from multiprocessing.queues import Queue
from types import TracebackType
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from samestep.core.disk_space import is_disk_full, shared_memory_full
from samestep.core.errors import RunFailed, first_line
from samestep.core.open_files import is_too_many_files, too_many_open_files

_FULL = "No space left on device"
_ENDED = re.compile(r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)")
_CONNECTION_ERRORS = (ConnectionError, EOFError)
_OF_DATA = "Caught "
"""How torch begins what the recipe's data raised in a worker."""


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
        with suppress(ValueError):  # the queue was closed meanwhile: nobody waits for the batch any more
            self.put((number, resource_error(error) or WorkerLost(what)))


def _delete_half_made(iterator: Any, delete: Callable[[Any], None] = _MultiProcessingDataLoaderIter.__del__) -> None:
    """Delete an iterator over workers. One whose construction failed lacks attributes, and would print a traceback."""
    with suppress(AttributeError):
        delete(iterator)


_MultiProcessingDataLoaderIter.__del__ = _delete_half_made  # type: ignore[method-assign]


def print_no_lost_connections() -> None:
    """In a worker: a thread of multiprocessing would print a traceback where its rank no longer wants a batch."""
    show = sys.excepthook

    def show_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, _CONNECTION_ERRORS):
            show(kind, error, trace)

    sys.excepthook = show_others


def resource_error(error: BaseException) -> Exception | None:
    """What a worker lacks, as an error that its rank can raise; None: the worker failed for another reason."""
    if is_disk_full(error):
        return error if error.filename else shared_memory_full()
    if isinstance(error, RuntimeError) and _FULL in str(error) and "(shm)" in str(error):
        return shared_memory_full()
    return too_many_open_files() if is_too_many_files(error) else None


@contextmanager
def naming_worker_failures() -> Iterator[None]:
    """While workers are started and asked. What has no space there is shared memory, which no error names; a connection
    that breaks is that of a worker that ended."""
    try:
        yield
    except (OSError, EOFError) as error:
        if is_disk_full(error) and error.filename is None:
            raise shared_memory_full() from None
        if isinstance(error, _CONNECTION_ERRORS) and not str(error).startswith(_OF_DATA):
            raise _worker_ended(error) from None
        raise


def lost_worker(error: BaseException) -> WorkerLost | None:
    """The sentence for a worker that ended; torch raises its error wherever the rank just is. None for other errors."""
    return _worker_ended(error) if isinstance(error, RuntimeError) and _ENDED.match(str(error)) else None


def _worker_ended(error: BaseException) -> WorkerLost:
    return WorkerLost(
        f"a data worker has ended ({first_line(error).rstrip('.')}); perhaps memory ran out, or shared memory "
        "(/dev/shm): use fewer workers (num_workers), or smaller batches, and resume"
    )
