"""`--hosts` with a program in place of ssh that runs the command on this machine; a real one is in tests/system."""

import json
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import samestep
from launching.test_launcher import gone
from samestep.core.errors import UserError
from samestep.launching.launcher import Launcher
from samestep.launching.nodes import ssh
from samestep.launching.nodes.options import NodeOptions, parse_nodes

pytestmark = pytest.mark.timeout(900)
HERE = """
    import json, os, subprocess, sys
    with open("ssh.jsonl", "a") as file:
        file.write(json.dumps({"args": sys.argv[1:], "env": dict(os.environ)}) + "\\n")
    print("Last login: today", flush=True)
    sys.exit(subprocess.call(["sh", "-c", sys.argv[-1]], env={"PATH": os.environ["PATH"]}))
"""
WORKER = """
    import os, sys, time
    from pathlib import Path
    from samestep.core.parent import terminate_with_parent
    terminate_with_parent(int(os.environ["SAMESTEP_PARENT"]), 1.0)
    rank = int(os.environ["RANK"])
    attempt = len(list(Path().glob(f"began_{rank}_*")))
    Path(f"began_{rank}_{attempt}").write_text(f"{os.getpid()} {os.environ['SAMESTEP_SECRET']}")
    print(sys.stdin.read(), "I am", rank)
"""


@dataclass
class Place:
    """A folder with an ssh and a worker."""

    folder: Path

    def ssh(self, body: str) -> None:
        path = self.folder / "bin" / "ssh"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
        path.chmod(0o755)

    def launch(self, body: str = "", hosts: str = "localhost,me@other", **options: int) -> int:
        worker = self.folder / "a worker's file.py"
        worker.write_text(textwrap.dedent(WORKER) + textwrap.dedent(body))
        nodes = parse_nodes({"hosts": hosts, "nproc": "1", "join-timeout": "60"})
        return Launcher([str(worker), "it's $HOME; `x`"], 1, grace=5.0, nodes=nodes, **options).run()

    def began(self) -> dict[str, list[str]]:
        return {path.name: path.read_text().split() for path in self.folder.glob("began_*")}


def sentences(printed: str) -> list[str]:
    """What was printed, without the notice that comes when a host takes some seconds."""
    return [line for line in printed.splitlines() if not line.startswith("samestep: waiting for other nodes at ")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    place.ssh(HERE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(samestep.__file__).parents[1]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return place


def test_the_other_host_gets_its_part_through_standard_input(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    assert place.launch('assert sys.argv[1:] == ["it\'s $HOME; `x`"], sys.argv') == 0
    began = place.began()
    assert began.keys() == {"began_0_0", "began_1_0"}
    (secret,) = {secret for _, secret in began.values()}
    (call,) = map(json.loads, (place.folder / "ssh.jsonl").read_text().splitlines())
    assert call["args"][-3:-1] == ["--", "me@other"]
    assert "-oBatchMode=yes" in call["args"]
    assert not [word for word in [*call["args"], *call["env"].values()] if secret in word]
    assert not [name for name in call["env"] if name.startswith("SAMESTEP_")]
    printed = capfd.readouterr()
    assert "I am 0" in printed.out
    assert sentences(printed.err) == ["[me@other] Last login: today"]
    assert all(gone(int(pid)) for pid, _ in began.values())


def test_a_failure_there_is_shown_here_once_with_its_traceback(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    assert place.launch("if rank == 1: raise ValueError('bad row')\ntime.sleep(30)") == 1
    printed = capfd.readouterr().err
    assert printed.count("ended with exit code 1") == 1
    assert printed.count("  ValueError: bad row") == 1


def test_a_lost_host_is_started_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_AGAIN_AFTER", 0.1)
    body = """
        if rank == 1 and attempt == 0:
            os.kill(int(os.environ["SAMESTEP_PARENT"]), 9)
        time.sleep(30 if attempt == 0 else 0)
    """
    assert place.launch(body, max_restarts=1) == 0
    assert place.began().keys() == {"began_0_0", "began_1_0", "began_0_1", "began_1_1"}
    assert len((place.folder / "ssh.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "import sys\nprint('noise')\nsys.exit('me@other: Permission denied (publickey).')",
            "me@other: Permission denied",
        ),
        ("", "it printed nothing"),
        (HERE.replace("sys.argv[-1]", "'exec /no/python'"), "sh: 1: exec: /no/python: not found"),
    ],
)
def test_an_ssh_that_fails_is_one_sentence(
    place: Place, capfd: pytest.CaptureFixture[str], body: str, reason: str
) -> None:
    place.ssh(body)
    assert place.launch() == 2
    (sentence,) = sentences(capfd.readouterr().err)
    assert sentence.startswith(f"samestep: me@other could not be started by ssh ({reason}")
    assert not place.began()


def test_the_launcher_over_there_refuses_what_is_no_request(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.ssh(HERE.replace("sys.argv[-1]]", "f'echo {{}} | ({sys.argv[-1]})']"))
    assert place.launch() == 2
    assert "(the first host sent no request; it has another version of samestep" in capfd.readouterr().err


def test_this_machine_must_be_the_first(place: Place) -> None:
    with pytest.raises(
        UserError, match=r"--hosts must begin with this machine \(.*\), by a name or an address that the"
    ):
        place.launch(hosts="192.0.2.1,localhost")


def test_it_needs_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(UserError, match="--hosts needs ssh, which is not installed here"):
        ssh.RemoteLaunchers(NodeOptions(2, 2, "a", 1, hosts=("a", "b")), [], 1.0)
