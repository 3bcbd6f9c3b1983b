"""`samestep.launch` on several nodes, and how it passes settings to the command line."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import samestep
from samestep.core.config import compose, dump, plain
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json
from samestep.launching.call import LaunchResult, _as_args, _wait

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "sine.py")


@pytest.mark.timeout(900)
def test_the_same_call_on_two_nodes_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both nodes are this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.create_server(("", 0)) as free:
        rdzv = f"127.0.0.1:{free.getsockname()[1]}"

    def node(rank: int) -> LaunchResult:
        settings: dict[str, Any] = {"preset": "verify", "name": "pair", "log": {"tensorboard": False, "every": 1}}
        where: dict[str, Any] = {"nproc": 1, "nodes": 2, "rdzv": rdzv, "node_rank": rank, "join_timeout": 200}
        return samestep.launch(EXAMPLE, settings, distributed={"device": "cpu"}, **where)

    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(node, range(2)))
    run = tmp_path / "runs" / "pair"
    assert ends == [LaunchResult(0, run), LaunchResult(0, run)]
    assert [row["world"] for row in JsonLines(run / "events.jsonl") if row["kind"] == "launch"] == [2]
    assert read_json(run / "config.json")["config"]["log"]["every"] == 1


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"hosts": ["a", "b c"]}, "--hosts must be host names with commas in between, such as node1,node2, not 'b c'"),
        ({"hosts": ["a", "b"], "nodes": 2}, "--hosts starts all nodes by itself; leave out --nodes"),
        ({"nodes": 2}, "--nodes 2 needs --rdzv HOST:PORT on every node"),
        ({"rdzv": "a:1"}, "--rdzv is for several nodes; add --nodes N"),
        ({"nodes": "1:2", "rdzv": "a:1", "node_rank": 2}, "--node-rank must be a whole number from 0 to 1, not '2'"),
    ],
)
def test_senseless_nodes_are_refused_before_anything_starts(where: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        samestep.launch("mdlm", **where)


@dataclass(frozen=True)
class Inner:
    weights: dict[str, float] = field(default_factory=dict)
    steps: tuple[int, ...] = (3,)


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    prompt: str = "x"
    folder: Path | None = Path("x")
    names: tuple[str, ...] = ("x",)
    rate: float = 1.0
    fast: bool = True
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    "config",
    [
        Outer(),
        Outer(Inner({"a": 1e-05, "b": 1e308}, ()), 'Hello, "${x}" = {y}:\n --z', None, ("a, b", "null", "")),
        Outer(prompt="", folder=Path("/a b"), names=(), rate=1e300, fast=False, many=(Inner({"c": 2.0}), Inner())),
    ],
)
def test_settings_survive_the_command_line(config: Outer) -> None:
    assert compose(Outer, args=list(_as_args(plain(dump(config))))) == config


def test_an_interrupt_that_another_thread_gets_is_passed_on() -> None:
    sleeper = "import time\nprint(flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(7)"
    process = subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout and process.stdout.readline()

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # this thread does not get it
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        assert _wait(process) == 7
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        process.kill()
