"""Rank 0 serves the time on a port: it shows whether rank 0 can be reached, and how far clocks are apart."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from samestep.core import handshake
from samestep.core.handshake import Listener
from samestep.core.store_server import LOCALHOST

PINGS = 8


class ClockServer:
    """A listening port that answers every line of those who know the key with the time."""

    def __init__(self, key: bytes, *, only_here: bool, clock: Callable[[], float] = time.time) -> None:
        server = socket.create_server((LOCALHOST if only_here else "", 0), backlog=1024)
        self.port = int(server.getsockname()[1])
        Listener(server, key, lambda connection, _: _answer(connection, clock)).start()


@dataclass(frozen=True)
class ClockOffset:
    """How far this clock is ahead of the server's, in seconds; the error is at most the uncertainty."""

    seconds: float
    uncertainty: float


def measure_offset(address: str, port: int, key: bytes, timeout: float) -> ClockOffset:
    """Compare clocks: the server's time belongs to the middle between request and answer, plus or minus half of that.

    Of several requests the one that was answered fastest is the most accurate.
    """
    with socket.create_connection((address, port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake.call(connection, key, timeout=timeout)
        connection.settimeout(timeout)
        with connection.makefile("rwb") as lines:
            offsets = []
            for _ in range(PINGS):
                sent = time.time()
                lines.write(b"\n")
                lines.flush()
                theirs = float(lines.readline())
                received = time.time()
                offsets.append(offset_from(sent, theirs, received))
    return min(offsets, key=lambda offset: offset.uncertainty)


def offset_from(sent: float, theirs: float, received: float) -> ClockOffset:
    """The offset by one request."""
    return ClockOffset((sent + received) / 2 - theirs, abs(received - sent) / 2)


def _answer(client: socket.socket, clock: Callable[[], float]) -> None:
    try:
        with client, client.makefile("rwb") as lines:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(handshake.TIMEOUT)
            while lines.readline(1):
                lines.write(f"{clock()!r}\n".encode())
                lines.flush()
    except OSError:  # the client closed the connection
        return
