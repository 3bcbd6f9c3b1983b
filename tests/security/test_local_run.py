"""A run of several ranks on one host, and another user of that host: nothing of the run can be reached from elsewhere,
and what the other user writes into its store changes nothing, or ends the run with an error."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.core.json_files import JsonLines
from security.strangers import Stranger, listening, process_tree

pytestmark = pytest.mark.timeout(900)
RECIPE = str(Path(__file__).parents[1] / "cli" / "trouble.py")
STEPS = 150


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    found = Stranger()
    yield found
    found.close()


@pytest.fixture
def run(stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A run of two ranks, some steps after its start; it takes some ten seconds more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "samestep", "train", RECIPE, "--nproc", "2", f"out={tmp_path}", "name=run"]
    settings = [
        f"max_steps={STEPS}",
        "pause=0.05",
        "batch_size=2",
        "log.every=1",
        "distributed.device=cpu",
    ]
    with subprocess.Popen(
        [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as process:
        try:
            end = time.monotonic() + 150
            while steps(tmp_path) < 3:
                assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


def steps(folder: Path) -> int:
    file = folder / "run" / "metrics.jsonl"
    return max((row["step"] for row in JsonLines(file) if "loss" in row), default=0) if file.exists() else 0


def ports(run: subprocess.Popen[str]) -> list[int]:
    """Those of the launcher, which has the store; strangers would try all, which takes longer."""
    return sorted({port for _, port in listening(run.pid)})


def test_it_listens_for_no_other_machine_and_what_a_stranger_adds_to_its_store_is_not_read(
    run: subprocess.Popen[str], stranger: Stranger, tmp_path: Path
) -> None:
    """By the names that entries would have without authentication: a failure with code 0, a recipe to import."""
    assert {address for address, _ in listening(*process_tree(run.pid))} == {"127.0.0.1"}
    assert stranger.attack("add", ports(run)), "the store was reached"
    output, _ = run.communicate(timeout=300)
    assert (run.returncode, steps(tmp_path)) == (0, STEPS), output


def test_what_a_stranger_overwrites_is_never_believed(
    run: subprocess.Popen[str], stranger: Stranger, tmp_path: Path
) -> None:
    """All entries, with a recipe to import that would leave a mark."""
    mark = tmp_path / "mark"
    planted = tmp_path / "planted.py"
    planted.write_text(f"open({str(mark)!r}, 'w')\n")
    found = stranger.attack("overwrite", ports(run), [str(planted), {}])
    assert found, "the store was reached"
    assert not [name for name in found if "samestep/failure" in name], "entries do not tell what they are"
    output, _ = run.communicate(timeout=300)
    assert not mark.exists()
    assert run.returncode != 0 or steps(tmp_path) == STEPS, output
