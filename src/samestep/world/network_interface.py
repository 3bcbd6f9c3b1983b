"""Chooses the network interface of gloo and NCCL: loopback on one host, else one on which other hosts reach this one.

gloo listens on the address that the host's own name resolves to. On many machines that is 127.0.1.1, which no other
host can reach, or the name does not resolve. There the interface is chosen that leads to the other hosts.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from samestep.world.rank_discovery import RankInfo, main_address

VARIABLE = "GLOO_SOCKET_IFNAME"
_LOOPBACK_VARIABLES = (VARIABLE, "NCCL_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def listen_where_needed(info: RankInfo, store: Any, env: MutableMapping[str, str]) -> None:
    """Have gloo listen on loopback if all ranks are on this host, else where the others can reach it."""
    if _is_one_host(info, env):
        return stay_on_loopback(env)
    key = "samestep/address/{}"
    other = 0 if info.rank >= info.size // 2 else info.size - 1  # the first and the last rank are on two hosts

    def publish(address: str) -> None:
        store.set(key.format(info.rank), address)

    choose_interface(main_address(info, env), publish, lambda: store.get(key.format(other)).decode(), env)


def _is_one_host(info: RankInfo, env: Mapping[str, str]) -> bool:
    """Whether all ranks are known to be on this host; some launchers do not say how many are."""
    if info.local_size < info.size:
        return False
    is_known = info.size == 1 or bool(info.job) or "LOCAL_WORLD_SIZE" in env or not info.grouped
    return is_known or is_loopback(env.get("MASTER_ADDR", ""))


def choose_interface(
    master: str,
    publish: Callable[[str], None],
    fetch: Callable[[], str],
    env: MutableMapping[str, str],
) -> None:
    """Set gloo's variable if that is needed and the user did not set it.

    `publish` gets the address at which this rank can be reached; `fetch` returns that of a rank on another host.
    """
    own = route_to(master)  # a loopback address on the master's own host, if its name resolves to one there
    publish(own)
    if env.get(VARIABLE) or _is_reachable(route_from_name()):
        return
    if not _is_reachable(own):
        own = route_to(fetch())
    names = interfaces()
    if _is_reachable(own) and own in names:
        env[VARIABLE] = names[own]


def stay_on_loopback(env: MutableMapping[str, str]) -> None:
    """All ranks are on this host: have gloo and NCCL listen for no other one, unless the user set an interface."""
    loopback = interfaces().get("127.0.0.1")
    if loopback:
        for name in _LOOPBACK_VARIABLES:
            env.setdefault(name, loopback)


def route_to(host: str) -> str:
    """The address of this host on the way to another one; empty where there is none. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return probe.getsockname()[0]
    except OSError:
        return ""


def route_from_name() -> str:
    """The address that this host's name resolves to, as for gloo; empty where this host does not have that address."""
    try:
        address = socket.gethostbyname(socket.gethostname())
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return address
    except OSError:
        return ""


def interfaces() -> dict[str, str]:
    """The names of this host's interfaces, by their addresses."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # no address on this interface
                continue
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine as only itself sees it."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        return False


def _is_reachable(address: str) -> bool:
    return bool(address) and not ipaddress.ip_address(address).is_loopback
