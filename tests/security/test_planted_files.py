"""Another user of this host who may write into the same folders: nothing of ours is overwritten or read by him."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.cli.main import main
from security.strangers import NOBODY
from system.requirements import require

pytestmark = pytest.mark.timeout(900)
RECIPE = str(Path(__file__).parents[1] / "cli" / "trouble.py")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which everybody may write, as that of a group; the folders above can be entered."""
    require("another user", (), root=True)
    folder = tmp_path / "shared"
    folder.mkdir()
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.getuid() and "pytest" in str(above):
            above.chmod(0o777 if above == folder else 0o755)
    return folder


def as_stranger(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as another user."""
    python = os.path.realpath("/usr/bin/python3")
    command = [python if os.path.exists(python) else sys.executable, "-c", code, *args]
    return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, cwd="/")


def train(shared: Path) -> list[str]:
    """The args of a run in that folder."""
    return ["train", RECIPE, f"out={shared}", "name=run", "max_steps=3", "batch_size=2", "distributed.device=cpu"]


@pytest.mark.parametrize("planted", ["lock", "logs/rank_0.log", ".config.json.tmp"])
def test_a_planted_link_is_never_followed(
    planted: str, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = shared.parent / "victim.txt"
    victim.write_text("my thesis")
    plant = "import os, sys; os.makedirs(os.path.dirname(sys.argv[1]), mode=0o777); os.symlink(*sys.argv[:0:-1])"
    assert as_stranger(plant, str(shared / "run" / planted), str(victim)).returncode == 0
    monkeypatch.chdir(shared.parent)
    code = main(train(shared))
    output = "".join(capsys.readouterr())
    assert victim.read_text() == "my thesis"
    assert code == 2 and "Traceback" not in output, output
    sentence = "holds no samestep run" if planted == ".config.json.tmp" else f"{planted} is a symbolic link"
    assert sentence in output


TRY = """
import os, sys
folder, victim = sys.argv[1:]
def attempt(what, *args):
    try:
        what(*args)
    except PermissionError:
        return
    print(what.__name__, *args)
attempt(os.listdir, folder)
attempt(os.stat, folder + "/rank_0.json")
attempt(os.open, folder + "/rank_0.json", os.O_WRONLY | os.O_CREAT)
attempt(os.symlink, victim, folder + "/rank_1.json")
attempt(os.rename, folder, folder + "-mine")
attempt(os.rmdir, folder)
"""


def test_the_folder_of_a_launch_is_closed_to_others(shared: Path) -> None:
    """It holds exit reports and output of the ranks, and lies where everybody may write."""
    temporary = shared.parent / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    command = [sys.executable, "-m", "samestep", *train(shared), "--nproc=2", "pause=0.5"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, env=env, text=True, cwd=shared.parent, **pipes)
    try:
        end = time.monotonic() + 300
        while not (found := list(temporary.glob("samestep-launch-*"))):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in found] == [0o700]
        tried = as_stranger(TRY, str(found[0]), str(shared))
        assert (tried.returncode, tried.stdout) == (0, ""), tried.stdout + tried.stderr
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
    finally:
        process.kill()


READ = """
import os, sys
for top, _, names in os.walk(sys.argv[1]):
    for name in names:
        try:
            print(top, name, "secret" in open(os.path.join(top, name), errors="replace").read())
        except PermissionError:
            pass
"""


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files are for everybody to read and write, unless a command closes them."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_secrets_of_a_job_are_read_by_nobody_else(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = shared.parent / "sbatch"
    stub.write_text("#!/bin/sh\necho 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    for _ in range(2):
        assert main(["submit", RECIPE, "--on=slurm", "--env=TOKEN=secret", f"out={shared}", "name=run"]) == 0
        (shared / "run" / "job" / "1.out").write_text("secret")  # as the scheduler does, for everybody to read
        (shared / "run" / "job" / "1.out").chmod(0o666)
        assert "secret" in (shared / "run" / "job" / "train.sh").read_text()
        assert as_stranger(READ, str(shared)).stdout == ""
