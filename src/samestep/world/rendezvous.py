"""How ranks find the store of rank 0 when their launcher names no port.

Nobody can know a port that will be free on another machine. So rank 0 opens the store wherever there is room, and
stands at the first free one of a few doors that follow from the job's identity, telling whoever asks where the store
is. A rank tries these doors until one answers for its own job; another job behind a door is recognised and passed by.
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

FIRST, RANGE, DOORS = 15000, 12000, 16
"""Doors lie below the ports that systems give out by themselves."""
ASK = 2.0
"""Seconds that an open door has to answer."""


def open_store(place: RankInfo, env: Mapping[str, str], timeout: timedelta) -> TCPStore:
    """The store of this launch, on every rank; an address or port that the user set is taken as it is."""
    address = env.get("MASTER_ADDR") or place.address
    if not address:
        raise UserError(
            f"{place.launcher} does not tell on which host rank 0 runs: set MASTER_ADDR to its name on every rank"
        )
    given = env.get("MASTER_PORT")
    if given:
        return TCPStore(address, _number(given), place.size, place.rank == 0, timeout, wait_for_workers=False)
    if place.rank > 0:
        port = _ask(address, place, timeout)
        return TCPStore(address, port, place.size, False, timeout, wait_for_workers=False)
    store = TCPStore("0.0.0.0", 0, place.size, True, timeout, wait_for_workers=False)
    if place.size > 1:
        door = _free_door(place.job)
        threading.Thread(target=_answer, args=(door, place, store.port), name="door", daemon=True).start()
    return store


def doors(job: str) -> list[int]:
    """The ports at which rank 0 of a job may be found, in the order in which they are tried."""
    first = FIRST + zlib.crc32(job.encode()) % RANGE
    return list(range(first, first + DOORS))


def _number(port: str) -> int:
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"MASTER_PORT={port!r} is no port: set it to a number from 1 to 65535, or unset it")
    return int(port)


def _free_door(job: str) -> socket.socket:
    for port in doors(job):
        try:
            return socket.create_server(("", port), backlog=1024)
        except OSError:  # somebody else's
            continue
    raise UserError(f"ports {doors(job)[0]} to {doors(job)[-1]} are all in use here: set MASTER_PORT to a free one")


def _word(place: RankInfo) -> bytes:
    return f"samestep {place.job} {place.size} ".encode()


def _answer(door: socket.socket, place: RankInfo, port: int) -> None:
    """Tell every rank where the store is; each asks once, but who else comes by is told as well."""
    with door:
        while True:
            caller, _ = door.accept()
            with caller:
                try:
                    caller.sendall(_word(place) + f"{port}\n".encode())
                except OSError:  # it went away
                    continue


def _ask(address: str, place: RankInfo, timeout: timedelta) -> int:
    end = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < end:
        for port in doors(place.job):
            answer = _answer_of(address, port)
            if answer.startswith(_word(place)):
                return int(answer.removeprefix(_word(place)))
        time.sleep(0.1)
    first, last = doors(place.job)[0], doors(place.job)[-1]
    raise UserError(
        f"rank 0 was not found on {address}, ports {first} to {last}, within {timeout}: check that the name resolves "
        "here and no firewall stands between, or set MASTER_ADDR and MASTER_PORT on every rank"
    )


def _answer_of(address: str, port: int) -> bytes:
    """What stands behind a door, or nothing."""
    try:
        with socket.create_connection((address, port), timeout=ASK) as connection:
            connection.settimeout(ASK)
            with connection.makefile("rb") as lines:
                return lines.readline(1024)
    except OSError:
        return b""
