"""Hosts for tests: network namespaces on one bridge, each with its name, its address and, if wished, its own folders.

A process in a host sees only that host's network. The others are reached by name, over links that can be cut. Whatever
runs in a host can be found and killed through its namespace.
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

from system.keeper import MARK, MARKED
from system.needs import do_without, require

_NEEDED = ("ip", "nsenter", "unshare", "mount", "hostname")
Process = subprocess.Popen[bytes]


def require_hosts() -> None:
    """Skip where hosts cannot be made; fail where they must be."""
    what = "hosts as network namespaces"
    require(what, _NEEDED, root=True)
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode:
        do_without(what, tried.stderr.strip())


def wait_for(condition: Callable[[], object], seconds: float, what: str | Callable[[], str] = "") -> None:
    """Until the condition holds; a test fails that waits in vain, and says for `what`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s in vain {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


@dataclass
class Machine:
    """This machine."""

    name: str = field(default_factory=lambda: socket.gethostname().split(".")[0])
    address: str = "127.0.0.1"
    """By which it is reached."""

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, output: Path, folder: Path | None = None
    ) -> Process:
        """Begin a command here; what it prints is appended to `output`."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab") as printed:
            return subprocess.Popen(
                self.inside(command, folder),
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **MARKED, **(env or {})},
                start_new_session=True,
            )

    def inside(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """The words that run a command here."""
        return [*(["env", f"--chdir={folder}"] if folder else []), *command]


@dataclass
class Host(Machine):
    """A machine of its own."""

    namespace: str = ""
    switch: str = ""
    names: Path = Path("/etc/hosts")
    """Its /etc/hosts."""
    own: Mapping[str, Path] = field(default_factory=dict)
    """Folders that it sees in place of others: its own disks."""

    def inside(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """The words that run a command here."""
        mounts = {**self.own, "/etc/hosts": self.names}
        lines = [f"hostname {self.name}", *(f"mount --bind '{source}' '{place}'" for place, source in mounts.items())]
        if folder is not None:
            lines.append(f"cd '{folder}'")  # after the mounts, or it would be the folder beneath them
        script = " && ".join([*lines, 'exec "$@"'])
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", script, "sh", *command]

    def processes(self) -> list[int]:
        """All that runs here."""
        return [int(word) for word in _run("ip", "netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """The end of all that runs here, as when the power goes."""
        wait_for(self._killed, 30, lambda: f"for the end of the processes {self.processes()} on {self.name}")

    def _killed(self) -> bool:
        found = self.processes()
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not found

    def cut(self) -> None:
        """Pull the plug of its network."""
        _run("ip", "-n", self.switch, "link", "set", f"to-{self.name}", "down")

    def mend(self) -> None:
        """Put it back."""
        _run("ip", "-n", self.switch, "link", "set", f"to-{self.name}", "up")


@contextmanager
def hosts(count: int, folder: Path, net: str) -> Iterator[Sequence[Host]]:
    """So many hosts, node1 and so on, at 10.78.0.1 and so on, on a network of their own."""
    require_hosts()
    switch, names = f"{MARK}-{net}-switch", [f"node{number}" for number in range(1, count + 1)]
    listed = folder / "hosts"
    addresses = [f"10.78.0.{number} node{number}" for number in range(1, count + 1)]
    listed.write_text("\n".join(["127.0.0.1 localhost", *addresses]) + "\n")
    made = [Host(name, name, f"{MARK}-{net}-{name}", switch, listed) for name in names]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for number, host in enumerate(made, start=1):
            _plug_in(host, f"10.78.0.{number}/24")
        yield made
    finally:
        for host in made:
            with suppress(subprocess.CalledProcessError):
                host.kill()
        for namespace in [*(host.namespace for host in made), switch]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _plug_in(host: Host, address: str) -> None:
    _run("ip", "netns", "add", host.namespace)
    plug = ["type", "veth", "peer", "name", f"to-{host.name}", "netns", host.switch]
    _run("ip", "link", "add", "eth0", "netns", host.namespace, *plug)
    _run("ip", "-n", host.switch, "link", "set", f"to-{host.name}", "master", "br0", "up")
    _run("ip", "-n", host.namespace, "addr", "add", address, "dev", "eth0")
    for link in ("lo", "eth0"):
        _run("ip", "-n", host.namespace, "link", "set", link, "up")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
