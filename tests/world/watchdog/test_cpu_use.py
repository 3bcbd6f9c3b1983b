"""What counts as computing: the process and its data workers, without the threads that look after it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from samestep.core import processes
from samestep.world.activity import ActivityTracker
from samestep.world.watchdog.watchdog import LEAST_SHARE, PERIOD, CpuUse, cpu_seconds

USED = 0.1
"""Seconds of CPU time that something uses here, however long that takes."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def compute() -> None:
    end = time.thread_time() + USED
    while time.thread_time() < end:
        sum(range(1000))


def run_thread(*, daemon: bool) -> None:
    """Compute in a thread that is still there afterwards."""
    done = threading.Event()
    threading.Thread(target=lambda: (compute(), done.set(), time.sleep(0.3)), daemon=daemon).start()
    assert done.wait(60)


@pytest.mark.parametrize(("daemon", "counts"), [(False, True), (True, False)])
def test_threads_that_look_after_the_process_do_not_count(
    daemon: bool, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "children", lambda pid: [])  # other tests may have left some that still start
    main = ActivityTracker().threads[0]
    before = cpu_seconds(main)
    run_thread(daemon=daemon)
    used = cpu_seconds(main) - before
    assert (used >= 0.9 * USED) == counts, used


def test_workers_count() -> None:
    main = ActivityTracker().threads[0]
    before = cpu_seconds(main)
    code = f"import time\nwhile time.process_time() < {USED}: pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        assert worker.pid in processes.children(os.getpid())
        assert cpu_seconds(main) - before >= 0.8 * USED
        worker.kill()


def test_a_side_thread_has_its_own_cpu_time() -> None:
    tracker = ActivityTracker()
    with tracker.side_thread("save", "save"):
        side = tracker.threads[-1]
        before = cpu_seconds(side)
        run_thread(daemon=False)
        assert cpu_seconds(side) - before < 0.5 * USED
        compute()
        assert cpu_seconds(side) - before >= 0.9 * USED


@pytest.mark.parametrize(("share", "asleep"), [(2 * LEAST_SHARE, False), (LEAST_SHARE / 2, True)])
def test_a_small_share_of_a_core_is_computing(share: float, asleep: bool) -> None:
    used = 0.0
    use = CpuUse(ActivityTracker().threads[0], clock=lambda activity: used)
    for _ in range(100):
        used += share
        use.update(1.0)
    assert (use.asleep > 90) == asleep and use.asleep >= 0
    assert use.computed == pytest.approx(100 * share), "CPU time counts, not the time that passed"
    use.forget()
    assert use.asleep == use.computed == 0.0


def test_what_falls_asleep_after_computing_is_asleep_and_cores_count_once() -> None:
    used = 0.0
    use = CpuUse(ActivityTracker().threads[0], clock=lambda activity: used)
    for second in range(60):
        used += 8.0 if second < 20 else 0.0
        use.update(1.0)
    assert use.computed == 20.0 and 40.0 - PERIOD <= use.asleep <= 40.0 + PERIOD
