"""What goes wrong, and the exit code each kind ends the process with."""

import os
import sys

from samestep.core.output import put

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_USER = 2
EXIT_MEMORY = 77  # a device or the machine ran out of memory; a smaller micro-batch may fit
EXIT_STALLED = 78  # the watchdog ended a run that made no progress any more
EXIT_INTERRUPTED = 130  # a second Ctrl-C: ended at once, without a save
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the run stopped in good order and can be resumed


class UserError(Exception):
    """Something the user can mend. The message is one sentence that says how; no traceback is shown."""

    exit_code = EXIT_USER
    kind = "user"


class RunFailed(Exception):
    """The run itself cannot go on. One sentence, no traceback, a failure exit."""

    exit_code = EXIT_FAILURE
    kind = "failed"
    """What `samestep why` sorts it under."""


class Diverged(RunFailed):
    """Gradients are not finite any more, or ranks do not hold the same parameters."""

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


def complain(sentence: str) -> None:
    """Say what is wrong, once: rank 0 speaks for all."""
    if os.environ.get("RANK", "0") == "0":
        put(f"samestep: {sentence}", sys.stderr)
