"""A run of the tests that is killed leaves nothing behind that could disturb the next one."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from system.hosts import require_hosts, wait_for
from system.keeper import marked

TESTS = """
import os, subprocess, sys, time
from system.keeper import VARIABLE, Keeper

mark, folder = sys.argv[1:]
Keeper(mark)
subprocess.run(["ip", "netns", "add", f"{mark}-node1"], check=True)
plain = {name: value for name, value in os.environ.items() if name != VARIABLE}
subprocess.Popen(["sleep", "1000"], env={**plain, VARIABLE: mark}, start_new_session=True)
subprocess.Popen(["sleep", "1000"], env=plain, cwd=folder, start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""


def test_what_killed_tests_had_started_is_ended(tmp_path: Path) -> None:
    require_hosts()
    mark = f"ss{uuid4().hex[:8]}"
    folder = tmp_path / f"cluster-{mark}"
    folder.mkdir()
    words = [sys.executable, "-c", TESTS, mark, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "ready\n"
        assert len(marked(mark)) == 2
        tests.kill()
    wait_for(lambda: not marked(mark), 60, "for the end of what the tests had started")
    wait_for(lambda: not list(Path("/run/netns").glob(f"{mark}-*")), 60, "for the end of its namespaces")
