"""Tests without a program they require say what is missing; with SAMESTEP_REQUIRE_SYSTEM=1 they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.requirements import INSTALL, require

SYSTEM = Path(__file__).parent


@pytest.mark.timeout(600)
def test_skipped_tests_are_listed() -> None:
    env = {name: value for name, value in os.environ.items() if name != "SAMESTEP_REQUIRE_SYSTEM"} | {"PATH": "/none"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SYSTEM), f"--ignore={__file__}"]
    command += ["-k", "not (test_all_ranks_end and torchrun)"]  # torchrun is always there
    done = subprocess.run(command, env=env, cwd=SYSTEM.parents[1], capture_output=True, text=True, timeout=500)
    output = done.stdout
    assert done.returncode == 0, output
    assert "passed" not in output.splitlines()[-1]
    listed = output[output.index("not tested here") :]
    for missing in ("SLURM: slurmctld, ", "mpiexec: mpiexec.mpich, ", "hosts as network namespaces: ip, "):
        line = next(line for line in listed.splitlines() if line.startswith(missing))
        assert f"not found; {INSTALL} installs it (" in line
    assert "test_slurm.py::test_requeued_by_an_operator" in listed
    assert (SYSTEM.parents[1] / INSTALL).exists()


def test_required_programs_are_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMESTEP_REQUIRE_SYSTEM", "1")
    with pytest.raises(pytest.fail.Exception, match="SLURM is required here, but: no-such-program not found"):
        require("SLURM", ["no-such-program"])
    monkeypatch.delenv("SAMESTEP_REQUIRE_SYSTEM")
    with pytest.raises(pytest.skip.Exception, match="no-such-program not found"):
        require("SLURM", ["no-such-program"])
