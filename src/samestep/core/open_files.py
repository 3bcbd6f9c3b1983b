"""How many files this process may have open (`ulimit -n`): sockets and pipes count, too.

A process that has reached the limit can no longer be trusted to say so: libraries abort, or wait for ever. So what is
going to open many files asks first.
"""

import errno
import os
import resource
from contextlib import suppress

from samestep.core.errors import RunFailed, UserError

LEAST = 64
"""What Python, torch and a run in one process need; a run of the smallest recipe has 28 files open."""
PER_RANK = 12
"""For each rank of a run: connections of every process group."""
PER_WORKER = 16
"""For each data worker: its pipes."""
PER_BATCH = 8
"""For each batch that is on its way from a data worker: one for each of its tensors."""
_ENOUGH = 4096
"""Limits are raised this far, where the system allows it: it costs nothing."""
_SPARE = 4
_RAISE = "raise the limit (ulimit -n 4096, or in the file limits.conf of the system)"


class TooManyOpenFiles(RunFailed):
    """This process may open no more files."""


def is_too_many_files(error: BaseException | None) -> bool:
    """Whether `error` means that this process, or the whole system, can open no more files."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    # torch and importlib have errors of their own, with the text of the system.
    return isinstance(error, ImportError | RuntimeError | OSError) and os.strerror(errno.EMFILE) in str(error)


def raise_limit() -> None:
    """Use as much of what the system allows this user as may be needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def require_open_files(more: int, what: str, instead: str = "") -> None:
    """Refuse to begin with what needs `more` open files than there are now, if that is not allowed."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = max(LEAST, _now_open() + more)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise UserError(
            f"only {limit} files may be open at a time (ulimit -n), and {what} may need {needed}; "
            f"{_RAISE}{f', or {instead}' if instead else ''}"
        )


def too_many_open_files() -> TooManyOpenFiles:
    """What to say where the limit is reached all the same."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return TooManyOpenFiles(
        f"too many files are open (this process may have {limit}: ulimit -n), or pipes and sockets, which count too; "
        f"{_RAISE}, use fewer data workers (num_workers), or close the files that the recipe opens"
    )


def _now_open() -> int:
    with suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 32  # the folder itself could not be opened, or there is none


class SpareFiles:
    """Open files to give back, so that a process which may open no more can still say so in the run directory."""

    def __init__(self) -> None:
        self._files: list[int] = []
        with suppress(OSError):
            self._files.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE))

    def close(self) -> None:
        """Give them back."""
        while self._files:
            os.close(self._files.pop())
