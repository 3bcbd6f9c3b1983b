"""Rendezvous: how ranks find the store of rank 0 when their launcher names no port.

No rank can know which port will be free on another machine. So rank 0 opens the store on any free port. It also listens
on the first free one of a few ports that follow from the job's id, and answers every connection with the store's port.
A rank tries these ports until one answers for its own job; another job on such a port is recognised and skipped.
"""

import socket
import threading
import time
import zlib
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from samestep.core.errors import UserError
from samestep.world.rank_discovery import RankInfo

FIRST, RANGE, PORTS = 15000, 12000, 16
"""These ports lie below those that operating systems assign by themselves."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a process which listens on a port has to answer."""


def open_store(info: RankInfo, env: Mapping[str, str], timeout: timedelta) -> TCPStore:
    """The store of this launch, on every rank; an address or port that the user set is taken as it is."""
    address = env.get("MASTER_ADDR") or info.address
    if not address:
        raise UserError(f"{info.launcher} does not name the host of rank 0: set MASTER_ADDR to its name on every rank")
    port_text = env.get("MASTER_PORT")
    if port_text:
        return TCPStore(address, _port_number(port_text), info.size, info.rank == 0, timeout, wait_for_workers=False)
    if info.rank > 0:
        port = _find_store(address, info, timeout)
        return TCPStore(address, port, info.size, False, timeout, wait_for_workers=False)
    store = TCPStore("0.0.0.0", 0, info.size, True, timeout, wait_for_workers=False)
    if info.size > 1:
        listener = _listen(info.job)
        threading.Thread(target=_answer_all, args=(listener, info, store.port), name="rendezvous", daemon=True).start()
    return store


def candidate_ports(job: str) -> list[int]:
    """The ports at which rank 0 of a job may be found, in the order in which they are tried."""
    first = FIRST + zlib.crc32(job.encode()) % RANGE
    return list(range(first, first + PORTS))


def _port_number(port: str) -> int:
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"MASTER_PORT={port!r} is not a port: set it to a number from 1 to 65535, or unset it")
    return int(port)


def _listen(job: str) -> socket.socket:
    for port in candidate_ports(job):
        try:
            return socket.create_server(("", port), backlog=1024)
        except OSError:  # used by another process
            continue
    ports = candidate_ports(job)
    raise UserError(f"ports {ports[0]} to {ports[-1]} are all in use here: set MASTER_PORT to a free one")


def _greeting(info: RankInfo) -> bytes:
    return f"samestep {info.job} {info.size} ".encode()


def _answer_all(listener: socket.socket, info: RankInfo, port: int) -> None:
    """Answer every connection with the store's port; each rank connects once, other processes may too."""
    with listener:
        while True:
            caller, _ = listener.accept()
            with caller:
                try:
                    caller.sendall(_greeting(info) + f"{port}\n".encode())
                except OSError:  # it closed the connection
                    continue


def _find_store(address: str, info: RankInfo, timeout: timedelta) -> int:
    end = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < end:
        for port in candidate_ports(info.job):
            answer = _read_answer(address, port)
            if answer.startswith(_greeting(info)):
                return int(answer.removeprefix(_greeting(info)))
        time.sleep(0.1)
    first, last = candidate_ports(info.job)[0], candidate_ports(info.job)[-1]
    raise UserError(
        f"rank 0 was not found on {address}, ports {first} to {last}, within {timeout}: check that the name resolves "
        "here and no firewall is in between, or set MASTER_ADDR and MASTER_PORT on every rank"
    )


def _read_answer(address: str, port: int) -> bytes:
    """What a process on that port answers; empty where there is none, or it does not answer."""
    try:
        with socket.create_connection((address, port), timeout=ANSWER_TIMEOUT) as connection:
            connection.settimeout(ANSWER_TIMEOUT)
            with connection.makefile("rb") as lines:
                return lines.readline(1024)
    except OSError:
        return b""
