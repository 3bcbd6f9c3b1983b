"""A process that ends with its parent, however that ends: `kill -9` of a launcher leaves no orphans."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.5


def stop_with(parent: int, grace: float, *, at_once: bool = True) -> None:
    """Get SIGTERM when the process `parent` ends; whoever has not stopped `grace` seconds later is ended by the kernel.

    `at_once` has the kernel send that SIGTERM: right where the thread that started this process lives as long as its
    process. Otherwise, and on other systems, a thread looks twice a second.
    """
    if at_once:
        _signal_at_parents_end(signal.SIGTERM)
    threading.Thread(target=_watch, args=(parent, grace), name="watch parent", daemon=True).start()


def end_with(parent: int) -> None:
    """Be killed when `parent`, whose main thread started this process, ends; be out of reach of signals to its group.

    For helpers of a rank: a terminal or a launcher signals whole groups, but stopping is the rank's affair.
    """
    os.setpgid(0, 0)
    _signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew what to do then
        os._exit(1)


def _signal_at_parents_end(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # The alarm needs no interpreter, so a process that hangs in foreign code ends too.
    signal.setitimer(signal.ITIMER_REAL, max(grace, 0.001))
    os.kill(os.getpid(), signal.SIGTERM)
