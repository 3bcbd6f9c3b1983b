"""Hosts for tests: network namespaces on one bridge, each with its own name, address and, optionally, folders.

A process on a host sees only that host's network. It reaches the other hosts by name, over links that can be cut. All
processes of a host can be found and killed through its namespace.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from system.cleanup import MARK, MARKED
from system.requirements import require, skip_or_fail

_PROGRAMS = ("ip", "nsenter", "unshare", "mount", "hostname")
Process = subprocess.Popen[bytes]


def require_hosts() -> None:
    """Skip the test where no hosts can be made; fail with SAMESTEP_REQUIRE_SYSTEM=1."""
    what = "hosts as network namespaces"
    require(what, _PROGRAMS, root=True)
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode:
        skip_or_fail(what, tried.stderr.strip())


SOON = 60
"""Seconds for what happens at once, on a machine that others use too."""


def wait_for(
    condition: Callable[[], object], seconds: float, what: str | Callable[[], str] = "", every: float = 0.05
) -> None:
    """Wait until the condition holds; after `seconds` the test fails with a message that has `what`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timed out after {seconds:g} s waiting {what if isinstance(what, str) else what()}")
        time.sleep(every)


@dataclass
class Machine:
    """This machine."""

    name: str = field(default_factory=lambda: socket.gethostname().split(".")[0])
    address: str = "127.0.0.1"
    """Where other machines reach it."""

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, output: Path, folder: Path | None = None
    ) -> Process:
        """Start a command on this machine; its output is appended to `output`."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab") as printed:
            return subprocess.Popen(
                self.wrap(command, folder),
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **MARKED, **(env or {})},
                start_new_session=True,
            )

    def wrap(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """The args that run a command on this machine."""
        return [*(["env", f"--chdir={folder}"] if folder else []), *command]


@dataclass
class Host(Machine):
    """A separate machine: a network namespace."""

    namespace: str = ""
    switch: str = ""
    names: Path = Path("/etc/hosts")
    """The file that it sees as /etc/hosts."""
    own_folders: Mapping[str, Path] = field(default_factory=dict)
    """Path to folder: what it sees at a path instead of the shared folder, as on its own disk."""

    def wrap(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """The args that run a command on this machine."""
        mounts = {**self.own_folders, "/etc/hosts": self.names}
        commands = [
            f"hostname {self.name}",
            *(f"mount --bind '{source}' '{place}'" for place, source in mounts.items()),
        ]
        if folder is not None:
            commands.append(f"cd '{folder}'")  # after the mounts, or it would be the folder under the mount
        script = " && ".join([*commands, 'exec "$@"'])
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", script, "sh", *command]

    def processes(self) -> list[int]:
        """The ids of all processes of this host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Kill all processes of this host, like a power failure."""
        wait_for(self._kill_once, 30, lambda: f"for the end of the processes {self.processes()} on {self.name}")

    def _kill_once(self) -> bool:
        found = self.processes()
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not found

    def cut_link(self) -> None:
        """Take down its network link."""
        _run("ip", "-n", self.switch, "link", "set", f"to-{self.name}", "down")

    def restore_link(self) -> None:
        """Bring its network link up again."""
        _run("ip", "-n", self.switch, "link", "set", f"to-{self.name}", "up")


@contextmanager
def hosts(count: int, folder: Path, net: str) -> Iterator[Sequence[Host]]:
    """`count` hosts node1, node2, ... at 10.78.0.1, 10.78.0.2, ... on a separate network."""
    require_hosts()
    switch, names = f"{MARK}-{net}-switch", [f"node{number}" for number in range(1, count + 1)]
    hosts_file = folder / "hosts"
    addresses = [f"10.78.0.{number} node{number}" for number in range(1, count + 1)]
    hosts_file.write_text("\n".join(["127.0.0.1 localhost", *addresses]) + "\n")
    made = [Host(name, name, f"{MARK}-{net}-{name}", switch, hosts_file) for name in names]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for number, host in enumerate(made, start=1):
            _connect(host, f"10.78.0.{number}/24")
        yield made
    finally:
        for host in made:
            with suppress(subprocess.CalledProcessError):
                host.kill()
        for namespace in [*(host.namespace for host in made), switch]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _connect(host: Host, address: str) -> None:
    _run("ip", "netns", "add", host.namespace)
    peer = ["type", "veth", "peer", "name", f"to-{host.name}", "netns", host.switch]
    _run("ip", "link", "add", "eth0", "netns", host.namespace, *peer)
    _run("ip", "-n", host.switch, "link", "set", f"to-{host.name}", "master", "br0", "up")
    _run("ip", "-n", host.namespace, "addr", "add", address, "dev", "eth0")
    for link in ("lo", "eth0"):
        _run("ip", "-n", host.namespace, "link", "set", link, "up")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
