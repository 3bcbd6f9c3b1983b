"""End a process when its parent ends, for any reason: `kill -9` of a launcher leaves no orphans."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5


def terminate_with_parent(parent: int, grace: float, *, by_kernel: bool = True) -> None:
    """Get SIGTERM when the process `parent` ends. If this process is still there `grace` seconds later, it is killed.

    With `by_kernel`, Linux sends that SIGTERM. It does so when the thread that started this process ends, so use it
    only where that thread lives as long as its process. A thread that polls twice a second covers all other cases.
    """
    if by_kernel:
        _set_parent_death_signal(signal.SIGTERM)
    threading.Thread(target=_poll_parent, args=(parent, grace), name="watch parent", daemon=True).start()


def kill_with_parent(parent: int) -> None:
    """Get SIGKILL when `parent`, whose main thread started this process, ends; leave its process group.

    For helpers of a rank: a terminal or a launcher signals process groups, but only the rank handles a stop request.
    """
    os.setpgid(0, 0)
    _set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the death signal was set
        os._exit(1)


def _set_parent_death_signal(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _poll_parent(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    # SIGALRM works without the interpreter, so a process that hangs in native code ends too.
    signal.setitimer(signal.ITIMER_REAL, max(grace, 0.001))
    os.kill(os.getpid(), signal.SIGTERM)
