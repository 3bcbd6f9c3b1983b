"""Ctrl-C in a command: one sentence, no traceback.

Nothing that takes time is imported here, since it must be in place before all other imports.
"""

import os
import sys
from types import TracebackType


def is_command() -> bool:
    """Whether this process is the command `samestep`, or `python -m samestep`: a program that uses the package keeps
    its own way with Ctrl-C."""
    argv, whole = getattr(sys, "argv", []), sys.orig_argv
    by_name = bool(argv) and os.path.basename(argv[0]) == "samestep"
    return by_name or (argv[:1] == ["-m"] and whole[whole.index("-m") + 1 :][:1] == ["samestep"])


def is_rank() -> bool:
    """Whether a launcher of ours started this process."""
    return "SAMESTEP_LAUNCH_FOLDER" in os.environ


def say_interrupted() -> None:
    """Until `main` begins, Ctrl-C ends the command with a sentence; Python then ends it by SIGINT, as shells expect."""
    sys.excepthook = _show


def hear_interrupts() -> None:
    """In a rank, whose launcher holds Ctrl-C back until here: in Python's own start it would end in a traceback."""
    import signal

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def exit_interrupted(number: int, frame: object) -> None:
    """The handler of SIGINT while a verb is imported: an exception inside the import of a library becomes another."""
    try:
        _say()
    finally:
        os._exit(130)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _say()
    else:
        sys.__excepthook__(kind, error, trace)


def _say() -> None:
    """One process says it: a launcher for its workers, or the first rank."""
    if is_rank() or os.environ.get("RANK", "0") != "0":
        return
    try:
        os.write(2, b"\nsamestep: interrupted before anything began\n")
    except OSError:  # nobody reads it
        pass
