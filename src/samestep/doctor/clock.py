"""Rank 0 tells the time to whoever connects: for whether it can be reached, and how far clocks are apart."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

PINGS = 8


class ClockServer:
    """A listening port that answers every line with the time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._server = socket.create_server(("", 0), backlog=1024)
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, name="beacon", daemon=True).start()

    def _serve(self) -> None:
        while True:
            caller, _ = self._server.accept()
            threading.Thread(target=_answer, args=(caller, self._clock), name="beacon call", daemon=True).start()


@dataclass(frozen=True)
class Offset:
    """How far this clock is before the beacon's, in seconds; the truth lies within the uncertainty of it."""

    seconds: float
    uncertainty: float


def ask(address: str, port: int, patience: float) -> Offset:
    """Compare clocks: the beacon's answer belongs to the middle between question and answer, give or take half of it.

    Of several questions the one that was answered fastest tells most.
    """
    with socket.create_connection((address, port), timeout=patience) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rwb") as lines:
            offsets = []
            for _ in range(PINGS):
                asked = time.time()
                lines.write(b"\n")
                lines.flush()
                theirs = float(lines.readline())
                answered = time.time()
                offsets.append(midpoint(asked, theirs, answered))
    return min(offsets, key=lambda offset: offset.uncertainty)


def midpoint(asked: float, theirs: float, answered: float) -> Offset:
    """The offset by one question."""
    return Offset((asked + answered) / 2 - theirs, abs(answered - asked) / 2)


def _answer(caller: socket.socket, clock: Callable[[], float]) -> None:
    try:
        with caller, caller.makefile("rwb") as lines:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in lines:
                lines.write(f"{clock()!r}\n".encode())
                lines.flush()
    except OSError:  # it went away
        return
