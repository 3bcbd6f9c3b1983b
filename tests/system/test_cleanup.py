"""When the tests are killed, nothing they started is left to disturb the next run."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from system.cleanup import marked
from system.hosts import require_hosts, wait_for

TEST_SCRIPT = """
import os, subprocess, sys, time
from system.cleanup import VARIABLE, ProcessCleanup

mark, folder = sys.argv[1:]
ProcessCleanup(mark)
subprocess.run(["ip", "netns", "add", f"{mark}-node1"], check=True)
plain = {name: value for name, value in os.environ.items() if name != VARIABLE}
subprocess.Popen(["sleep", "1000"], env={**plain, VARIABLE: mark}, start_new_session=True)
subprocess.Popen(["sleep", "1000"], env=plain, cwd=folder, start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""


def test_processes_and_namespaces_of_killed_tests_are_removed(tmp_path: Path) -> None:
    require_hosts()
    mark = f"ss{uuid4().hex[:8]}"
    folder = tmp_path / f"cluster-{mark}"
    folder.mkdir()
    command = [sys.executable, "-c", TEST_SCRIPT, mark, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "ready\n"
        assert len(marked(mark)) == 2
        tests.kill()
    wait_for(lambda: not marked(mark), 60, "for the end of the processes")
    wait_for(lambda: not list(Path("/run/netns").glob(f"{mark}-*")), 60, "for the end of the namespaces")
