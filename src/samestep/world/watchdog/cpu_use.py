"""Whether a thread that makes no progress still computes: it may only be slow, as on a machine that others use too."""

import os
import threading
import time
from collections.abc import Callable

from samestep.core import processes
from samestep.world.activity import ThreadActivity

PERIOD = 3.0
"""Seconds over which it is decided whether a thread computes."""
LEAST_SHARE = 0.02
"""A thread computes if it gets this share of a core: little, since a core may be shared by many."""


def cpu_seconds(activity: ThreadActivity) -> float:
    """CPU time that a thread has used; for the main one that of the whole process and of its data workers.

    Without that of threads that only look after the process: this one, heartbeats, leases, a progress bar. All of them
    are daemons.
    """
    if activity.name != "main":
        return processes.thread_cpu_seconds(activity.native_id)
    own = time.process_time() + sum(map(processes.cpu_seconds, processes.children(os.getpid())))
    daemons = [thread.native_id for thread in threading.enumerate() if thread.daemon and thread.native_id is not None]
    return own - sum(map(processes.thread_cpu_seconds, daemons))


class CpuUse:
    """How much a thread has computed since its last progress."""

    def __init__(self, activity: ThreadActivity, clock: Callable[[ThreadActivity], float] = cpu_seconds) -> None:
        self._activity, self._clock = activity, clock
        self._before = clock(activity)
        self._passed = self._used = 0.0  # in the present period
        self.computed = 0.0
        """Seconds of CPU time, where several cores at the same time count as one."""
        self.asleep = 0.0
        """Seconds since it computed."""

    def forget(self) -> None:
        """It made progress."""
        self._passed = self._used = self.computed = self.asleep = 0.0

    def update(self, passed: float) -> None:
        """Some time has passed without progress."""
        now = self._clock(self._activity)
        used, self._before = max(0.0, now - self._before), now
        self._passed, self._used = self._passed + passed, self._used + used
        self.computed += min(used, passed)
        self.asleep += passed
        if self._passed >= PERIOD:
            if self._used >= LEAST_SHARE * self._passed:
                self.asleep = 0.0
            self._passed = self._used = 0.0
