"""`--hosts`: one command on one host trains on two; the other one is started by a real ssh."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from faults import toy
from faults.run_checks import metric_rows, tensor_checksums
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.train.session.entry import train_with
from system.cleanup import environment
from system.hosts import SOON, Host, Process, hosts, wait_for
from system.requirements import MODULES
from system.sshd import Ssh
from system.test_nodes_network import RUN_TIMEOUT, exit_codes
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(900)
STEPS = 60


@dataclass
class SshRuns:
    """Two hosts, an sshd on the second, and runs that are started on the first."""

    first: Host
    second: Host
    ssh: Ssh
    folder: Path

    def settings(self, label: str, **changes: Any) -> dict[str, Any]:
        """The configuration of a run of the toy."""
        log = {"every": 1, "quiet": False, "tensorboard": False}
        settings = {"max_steps": STEPS, "schedule": "constant", "log": log, **changes}
        return toy.settings(self.folder / "runs", name=label, **settings)

    def start(self, label: str, *options: str, key: str = "user", **settings: Any) -> Process:
        """Train the toy on the first host with these options."""
        file = self.folder / f"{label}.yaml"
        file.write_text(json.dumps(self.settings(label, **settings)))
        command = ("-m", "samestep", "train", toy.NAME, f"--config={file}", *options)
        return self.start_python(label, *command, key=key)

    def start_python(self, label: str, *command: str, key: str = "user") -> Process:
        """Run Python on the first host."""
        env = {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1", "PATH": self.ssh.path(key)}
        return self.first.start(sys.executable, *command, env=env, output=self.output(label), folder=self.folder)

    def output(self, label: str) -> Path:
        return self.folder / f"{label}.txt"

    def printed(self, label: str) -> str:
        return self.output(label).read_text(errors="replace")

    def run(self, label: str) -> RunDir:
        return RunDir(self.folder / "runs" / label)

    def steps(self, label: str) -> int:
        return max((row["step"] for row in JsonLines(self.run(label).metrics) if "loss" in row), default=0)

    def await_step(self, label: str, step: int) -> None:
        wait_for(lambda: self.steps(label) >= step, RUN_TIMEOUT, lambda: f"for step {step}: {self.printed(label)}")

    def processes(self, host: Host, word: bytes) -> list[int]:
        """Those with a word on their command line."""
        return [pid for pid in host.processes() if word in command_line(pid)]

    @property
    def idle(self) -> bool:
        """Whether nothing is left but sshd."""
        return not [pid for host in (self.first, self.second) for pid in self.processes(host, b"samestep")]


def sentences(printed: str) -> list[str]:
    """What was printed, without the notice that comes when a host takes some seconds."""
    return [line for line in printed.splitlines() if not line.startswith("samestep: waiting for other nodes at ")]


def command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshRuns]:
    folder = tmp_path_factory.mktemp("ssh")
    with hosts(2, folder, "ssh") as (first, second):
        ssh = Ssh.prepare(folder / "keys")
        ssh.serve(second)
        yield SshRuns(first, second, ssh, folder)


def secret_of_a_rank(runs: SshRuns, host: Host) -> bytes:
    ranks = [pid for pid in host.processes() if b"\0RANK=" in environment(pid)]
    entries = environment(ranks[0]).split(b"\0")
    return next(entry.partition(b"=")[2] for entry in entries if entry.startswith(b"SAMESTEP_SECRET="))


def test_two_hosts_train_as_one_whatever_is_killed_in_between(runs: SshRuns) -> None:
    run_on_ranks(train_with, 2, toy.NAME, runs.settings("alone"), logs=runs.folder / "alone", timeout=RUN_TIMEOUT)
    slow, both = {"step_delay": 0.25}, ("--hosts=node1,second", "--nproc=1")

    launcher = runs.start("pair", *both, **slow)
    runs.await_step("pair", 3)
    secret = secret_of_a_rank(runs, runs.second)
    assert len(secret) == 64
    assert secret == secret_of_a_rank(runs, runs.first)
    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if secret in command_line(pid)]
    clients = runs.processes(runs.first, b"BatchMode")
    assert clients
    assert not [pid for pid in clients if secret in environment(pid)]
    assert not [pid for pid in runs.second.processes() if b"remote" in command_line(pid) and secret in environment(pid)]

    launcher.kill()
    wait_for(lambda: runs.idle, SOON, "for all to end after the launcher was killed")

    launcher = runs.start("pair", *both, **slow)
    runs.await_step("pair", runs.steps("pair") + 4)
    for pid in runs.processes(runs.first, b"BatchMode"):
        os.kill(pid, signal.SIGKILL)
    assert exit_codes(launcher, within=SOON) == [75], runs.printed("pair")
    wait_for(lambda: runs.idle, SOON, "for all to end after ssh was killed")

    launcher = runs.start("pair", *both, "--max-restarts=1", **slow)
    runs.await_step("pair", runs.steps("pair") + 4)
    for pid in runs.processes(runs.second, b"samestep"):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "(restart 1 of 1)" in runs.printed("pair"), SOON, "for the loss to be noticed")
    runs.await_step("pair", runs.steps("pair") + 4)
    launcher.send_signal(signal.SIGTERM)
    assert exit_codes(launcher, within=RUN_TIMEOUT) == [75], runs.printed("pair")
    wait_for(lambda: runs.idle, SOON, "for all to end after SIGTERM")
    assert read_json(runs.run("pair").status)["status"] == "preempted"

    settings = {**json.loads((runs.folder / "pair.yaml").read_text()), "step_delay": 0.0}
    call = f"samestep.launch({toy.NAME!r}, {settings}, nproc=1, hosts=['node1', 'second'])"
    launcher = runs.start_python("pair", "-c", f"import samestep; assert {call}.done")
    assert exit_codes(launcher, within=RUN_TIMEOUT) == [0], runs.printed("pair")
    assert runs.idle
    pair, one = runs.run("pair").path, runs.run("alone").path
    assert tensor_checksums(pair) == tensor_checksums(one)
    assert metric_rows(pair) == metric_rows(one)
    assert "Traceback" not in runs.printed("pair")
    assert runs.printed("pair").count("samestep: node2 closed the connection") <= 1, "one launcher prints for all"


@pytest.mark.parametrize(
    ("names", "key", "expected"),
    [
        ("node1,node2,nowhere", "user", "nowhere could not be started by ssh (ssh: Could not resolve hostname nowhere"),
        ("node1,node2", "unknown", "node2 could not be started by ssh (root@node2: Permission denied (publickey"),
        ("node1,10.78.0.2", "user", "10.78.0.2 could not be started by ssh (Host key verification failed.)"),
        ("node2,node1", "user", "--hosts must begin with this machine (node1), by a name or an address"),
    ],
)
def test_a_host_that_cannot_be_started_is_named_and_nothing_is_left(
    runs: SshRuns, names: str, key: str, expected: str
) -> None:
    runs.output("refused").unlink(missing_ok=True)
    process = runs.start("refused", f"--hosts={names}", "--nproc=1", key=key)
    assert exit_codes(process, within=60) == [2], runs.printed("refused")
    (sentence,) = sentences(runs.printed("refused"))
    assert sentence.startswith(f"samestep: {expected}")
    wait_for(lambda: runs.idle, SOON, "for all to end")


def test_a_folder_that_the_other_host_lacks_is_named(runs: SshRuns, tmp_path: Path) -> None:
    disk, place = tmp_path / "disk", tmp_path / "place"
    (disk / "work").mkdir(parents=True)
    place.mkdir()
    first = replace(runs.first, own_folders={str(place): disk})
    env = {"PYTHONPATH": MODULES, "PATH": runs.ssh.path()}
    command = (sys.executable, "-m", "samestep", "train", toy.NAME, "--hosts=node1,node2", "--nproc=1")
    output = tmp_path / "output.txt"
    process = first.start(*command, env=env, output=output, folder=place / "work")
    assert exit_codes(process, within=60) == [2], output.read_text()
    (sentence,) = sentences(output.read_text())
    assert sentence.startswith("samestep: node2 could not be started by ssh (")
    assert f"cd: {place / 'work'}: No such file" in sentence or f"can't cd to {place / 'work'}" in sentence
