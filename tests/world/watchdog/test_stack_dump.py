"""Where a thread is, as a user would look for it; live, and from what faulthandler dumps."""

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from samestep.data.loading import loader
from samestep.world.activity import ActivityTracker
from samestep.world.source_lines import relevant_line
from samestep.world.watchdog import stack_dump
from samestep.world.world import World

TOGETHER = World._wait_for.__code__.co_filename
"""The file of the code in which ranks wait for each other without a collective."""


@contextmanager
def thread_in(work: Callable[[threading.Event], object]) -> Iterator[int]:
    """A thread that is inside `work` meanwhile."""
    inside, leave = threading.Event(), threading.Event()

    def run() -> None:
        inside.set()
        work(leave)

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait()
    time.sleep(0.05)
    try:
        yield thread.ident or 0
    finally:
        leave.set()
        thread.join()


def users_code(leave: threading.Event) -> None:
    leave.wait(20)  # here


def line_of_here() -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# here"))


def test_the_users_line_is_shown_not_the_librarys_below_it() -> None:
    with thread_in(users_code) as thread:
        line = relevant_line(stack_dump.stack_of(thread))
    assert line.endswith(f"test_stack_dump.py:{line_of_here()} in users_code"), line


def test_the_same_from_a_dump(tmp_path: Path) -> None:
    with thread_in(users_code) as thread, open(tmp_path / "dump", "w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    text = (tmp_path / "dump").read_text()
    line = relevant_line(stack_dump.stack_from_dump(text, thread))
    assert line.endswith(f"test_stack_dump.py:{line_of_here()} in users_code"), line
    assert stack_dump.stack_from_dump(text, 12345) == []


def test_inside_samestep_its_own_line_is_shown_with_a_short_path() -> None:
    own = loader.__code__
    stack = [(threading.__file__, 3, "wait"), (own.co_filename, 7, "load"), (__file__, 1, "main")]
    assert relevant_line(stack) == f"{Path('samestep/data/loading.py')}:7 in load"


def test_a_debugger_is_recognised() -> None:
    code = compile("def stopped(leave):\n    leave.wait(20)\n", "bdb.py", "exec")
    space: dict[str, Callable[[threading.Event], object]] = {}
    exec(code, {"__name__": "bdb"}, space)
    with thread_in(space["stopped"]) as thread:
        assert stack_dump.is_debugged(thread)
    with thread_in(users_code) as thread:
        assert not stack_dump.is_debugged(thread)


def test_a_report_is_plain_data() -> None:
    tracker = ActivityTracker()
    with tracker.doing("validate"):
        report = stack_dump.thread_report(tracker, tracker.threads[0], seconds=2.0, limit=5.0, unusual=None, rank=3)
    assert (report["rank"], report["activity"], report["seconds"], report["limit"]) == (3, "validate", 2.0, 5.0)
    assert report["pid"] == os.getpid() and report["memory"] > 1e6 and report["free"] > 0
    assert report["collectives"] == {} and not report["waits"]


def test_where_ranks_wait_for_each_other() -> None:
    inside = (dist.distributed_c10d.__file__, 9, "all_reduce")
    assert stack_dump.is_waiting([inside, (__file__, 1, "loss")])
    assert stack_dump.is_waiting([(TOGETHER, 9, "together"), (__file__, 1, "main")])
    assert not stack_dump.is_waiting([(threading.__file__, 2, "wait"), (__file__, 1, "main"), inside])
    assert not stack_dump.is_waiting([(__file__, 1, "main"), (TOGETHER, 9, "together")])
    assert not stack_dump.is_waiting([])
