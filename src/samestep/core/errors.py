"""The errors that end a command, and the exit code of each kind."""

import errno
import os
import sys
from collections.abc import Iterable

from samestep.core.output import print_safely

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_USER = 2
EXIT_MEMORY = 77  # a device or the machine ran out of memory; a smaller micro-batch may fit
EXIT_STALLED = 78  # the watchdog ended a run that no longer made progress
EXIT_INTERRUPTED = 130  # a second Ctrl-C: ended immediately, without a save
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the run saved and stopped, and can be resumed


class UserError(Exception):
    """Something that the user can fix. The message is one sentence that says how; no traceback is printed."""

    exit_code = EXIT_USER
    kind = "user"


class NoSpace(UserError):
    """A disk was full before training began."""

    kind = "disk"


class RunFailed(Exception):
    """The run itself cannot continue. One sentence, no traceback, a failure exit."""

    exit_code = EXIT_FAILURE
    kind = "failed"
    """The kind that `samestep why` reports."""


class Diverged(RunFailed):
    """Gradients are no longer finite, or ranks do not hold the same parameters."""

    kind = "diverged"


class DiskFailed(RunFailed):
    """The run's state cannot be written."""

    kind = "disk"


class Stalled(RunFailed):
    """No progress for longer than the limit."""

    exit_code = EXIT_STALLED
    kind = "hung"


class OutOfMemory(RunFailed):
    """A rank ran out of memory. A launcher restarts the run with half the micro-batch."""

    exit_code = EXIT_MEMORY
    kind = "memory"


_PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EROFS)
_SHOWN = 200  # characters of a path that a sentence quotes


def path_error(error: BaseException) -> UserError | None:
    """The sentence for a path that cannot be used as it was given: a folder in place of a file or the reverse, a name
    that is too long, no permission. None for all other errors; a file that is missing may be a mistake in the code."""
    if not isinstance(error, OSError) or error.errno not in _PATH_ERRORS or error.filename is None:
        return None
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."
    return UserError(f"{shown} cannot be used ({error.strerror}); fix that, or give another path")


def first_line(error: BaseException) -> str:
    """The first line of what a library says, for a sentence; the kind of the error where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def quoted(names: Iterable[str]) -> str:
    """Names for a sentence, each in quotes; `none` where there are none."""
    return ", ".join(map(repr, names)) or "none"


def print_error(sentence: str) -> None:
    """Print what is wrong to stderr, once: only on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print_safely(f"samestep: {sentence}", sys.stderr)
