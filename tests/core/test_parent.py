"""No process outlives the one it belongs to, however that ends."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from toys import gone

pytestmark = pytest.mark.timeout(900)
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1]])
child.wait()
"""
CHILD = """
import os, signal, sys, time
from pathlib import Path
from samestep.core.parent import kill_with_parent, terminate_with_parent
"""


def family(folder: Path, body: str) -> tuple[subprocess.Popen, int]:
    """A parent that waits for its child, which runs `body` and says when it is ready."""
    ready = folder / "ready"
    path = folder / "child.py"
    path.write_text(
        CHILD + textwrap.dedent(body) + f"\nPath({str(ready)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)])
    wait_for(lambda: ready.exists() and ready.read_text())
    return parent, int(ready.read_text())


def wait_for(condition: object, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_the_child_of_a_killed_parent_is_asked_to_stop(tmp_path: Path, by_kernel: bool) -> None:
    parent, child = family(
        tmp_path,
        f"""
        signal.signal(signal.SIGTERM, lambda *_: (Path({str(tmp_path / "asked")!r}).touch(), sys.exit()))
        terminate_with_parent(os.getppid(), 30.0, by_kernel={by_kernel})
        """,
    )
    parent.kill()
    wait_for(lambda: gone(child))
    assert (tmp_path / "asked").exists()
    parent.wait()


def test_a_child_that_does_not_stop_is_ended_after_the_grace_time(tmp_path: Path) -> None:
    body = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        terminate_with_parent(os.getppid(), 1.0)
    """
    parent, child = family(tmp_path, body)
    time.sleep(1.5)
    assert not gone(child), "with a living parent nothing happens"
    parent.kill()
    wait_for(lambda: gone(child))
    parent.wait()


def test_a_helper_ends_with_its_rank_and_is_not_in_its_group(tmp_path: Path) -> None:
    body = """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        kill_with_parent(os.getppid())
    """
    parent, child = family(tmp_path, body)
    assert os.getpgid(child) == child
    parent.kill()
    wait_for(lambda: gone(child))
    parent.wait()


def test_a_helper_whose_rank_is_gone_already_ends() -> None:
    code = "import os; from samestep.core.parent import kill_with_parent; kill_with_parent(os.getppid() + 1)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 1
