"""Several nodes: how many, at which address they meet, and which of them opens that port."""

import errno
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samestep.core.errors import UserError
from samestep.core.imports import uncollected_imports

JOIN_TIMEOUT = 300.0
"""Seconds that nodes wait for each other."""
_PORT = 29400
"""The default, which is torchrun's too."""
_HOST = re.compile(r"(\w[\w.+-]*@)?[\w\[:][\w.:%\[\]-]*")
"""A host name, an address, or a name in ssh's configuration; none of them can look like an option of ssh."""


@dataclass(frozen=True)
class NodeOptions:
    """The options of the command line about nodes."""

    least: int
    most: int
    host: str
    port: int
    rank: int | None = None
    """Position among the nodes; 0 leads and opens the port. None: the node that has the address does."""
    join_timeout: float = JOIN_TIMEOUT
    hosts: Sequence[str] = ()
    """The hosts of `--hosts`: this one, which leads, and those that it starts by ssh."""
    hosts_nproc: str = "auto"
    """`--nproc` for each of them."""
    by_ssh: bool = False
    """Whether the first host started this node."""

    @property
    def address(self) -> str:
        """As users write it."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def open_port(self) -> socket.socket | None:
        """The port to which all nodes connect, if this node is the one to open it."""
        if self.rank is not None and self.rank > 0:
            return None
        if not self._is_here():
            if self.rank is None:
                return None
            if self.hosts:
                raise UserError(
                    f"--hosts must begin with this machine ({socket.gethostname()}), by a name or an address that the "
                    f"others can reach, and {self.host} is another one"
                )
            raise UserError(
                f"--node-rank 0 is the first node, but {self.host} of --rdzv is not this machine "
                f"({socket.gethostname()}); name this machine there, on every node, or give it another --node-rank"
            )
        with uncollected_imports():  # what the leader needs; other nodes wait for its answer only once the port is open
            import torch._C._distributed_c10d  # noqa: F401
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
            return socket.create_server(("", self.port), backlog=1024)
        except OSError as error:
            if self.rank is None and error.errno == errno.EADDRINUSE:
                return None  # another node on this machine has it; another program is noticed when connecting
            raise UserError(
                f"port {self.port} cannot be opened here ({os.strerror(error.errno or 0)}); choose another one with "
                f"--rdzv {self.host}:PORT, the same on every node"
            ) from None

    def check_host(self) -> None:
        """Refuse a host name that does not resolve, at once."""
        try:
            socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            option = "--hosts" if self.hosts or self.by_ssh else f"--rdzv {self.address}"
            raise UserError(
                f"{option}: the name {self.host!r} does not resolve on {socket.gethostname()} ({error.strerror}); "
                "use the first node's IP address"
            ) from None

    def _is_here(self) -> bool:
        """Whether this machine has the address: only then can a socket be bound to it."""
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.bind(address)
                    return True
            except OSError:
                continue
        return False


def parse_nodes(options: Mapping[str, str]) -> NodeOptions | None:
    """The nodes that `--hosts`, or `--nodes`, `--rdzv` and `--node-rank`, ask for; None: only this one."""
    if "hosts" in options:
        return _parse_hosts(options)
    if "nodes" not in options:
        for name in ("rdzv", "node-rank", "join-timeout"):
            if name in options:
                raise UserError(f"--{name} is for several nodes; add --nodes N, or leave it out")
        return None
    least, most = _range(options["nodes"])
    if "rdzv" not in options:
        if most == 1:
            return None
        raise UserError(
            f"--nodes {options['nodes']} needs --rdzv HOST:PORT on every node: the first node's address and a free port"
        )
    host, port = _endpoint(options["rdzv"])
    rank = options.get("node-rank")
    if rank is not None and not (rank.isdigit() and int(rank) < most):
        raise UserError(f"--node-rank must be a whole number from 0 to {most - 1}, not {rank!r}")
    return NodeOptions(least, most, host, port, None if rank is None else int(rank), _join_timeout(options))


def _parse_hosts(options: Mapping[str, str]) -> NodeOptions:
    """`--hosts a,b`: this machine is the first and leads, on a port that the system chooses."""
    for name in ("nodes", "rdzv", "node-rank"):
        if name in options:
            raise UserError(f"--hosts starts all nodes by itself; leave out --{name}")
    hosts = options["hosts"].split(",")
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UserError(f"--hosts must be host names with commas in between, such as node1,node2, not {host!r}")
        if hosts.count(host) > 1:
            raise UserError(f"--hosts names {host} twice; name each host once, and set --nproc to its ranks")
    first = hosts[0].rpartition("@")[2].strip("[]")
    timeout, nproc = _join_timeout(options), options.get("nproc", "auto")
    return NodeOptions(len(hosts), len(hosts), first, 0, 0, timeout, tuple(hosts), nproc)


def _join_timeout(options: Mapping[str, str]) -> float:
    seconds = options.get("join-timeout", f"{JOIN_TIMEOUT:g}")
    if not seconds.replace(".", "", 1).isdigit():
        raise UserError(f"--join-timeout must be a number of seconds, not {seconds!r}")
    return float(seconds)


def _range(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    if not (least.isdigit() and (most.isdigit() or not colon)) or not 0 < int(least) <= int(most or least):
        raise UserError(f"--nodes must be a number of nodes, or LEAST:MOST such as 1:4, not {text!r}")
    return int(least), int(most or least)


def _endpoint(text: str) -> tuple[str, int]:
    host, port = text, str(_PORT)
    if not text.endswith("]") and (text.count(":") == 1 or "]:" in text):
        host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"--rdzv must be HOST:PORT such as node1:29400, not {text!r}")
    return host.strip("[]"), int(port)
