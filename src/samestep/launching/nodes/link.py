"""A connection between the launchers of two nodes: authenticated lines of JSON, and heartbeats in between."""

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from samestep.core.handshake import MAX_LINE, Lines, NotTrusted
from samestep.launching.nodes.messages import Message, parse

HEARTBEAT_INTERVAL = 1.0
"""Seconds between heartbeats."""
TIMEOUT = 10.0
"""Seconds without a heartbeat after which a node counts as out of reach."""
_HEARTBEAT = b""


class Link:
    """One end of a connection. Its own thread calls back with each message, and with how the connection ended."""

    def __init__(
        self,
        connection: socket.socket,
        lines: Lines,
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[str, bool], None],
        timeout: float = TIMEOUT,
    ) -> None:
        """`on_end(how, silent)`, once: closed by the other side, or silent too long."""
        connection.settimeout(timeout)
        self._connection, self._lines, self._timeout = connection, lines, timeout
        self._on_message, self._on_end = on_message, on_end
        self._incoming = connection.dup()  # with a timeout of its own
        self._incoming.settimeout(HEARTBEAT_INTERVAL / 4)
        self._sending = threading.Lock()
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._serve, name="node link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; if the other side is gone, `on_end` reports that, not this method."""
        self._send_line(json.dumps([type(message).__name__, asdict(message)]).encode())

    def _send_line(self, line: bytes) -> None:
        with self._sending:
            try:
                self._connection.sendall(self._lines.seal(line))
            except OSError:
                self._shut_down()

    def close(self) -> None:
        """Close the connection, without a callback."""
        self._closed = True
        self._shut_down()

    def _serve(self) -> None:
        how, silent = "closed the connection", False
        try:
            silent = self._receive()
        except (OSError, ValueError, RecursionError, NotTrusted) as error:  # reset, or not our protocol
            how = f"broke the connection ({error})"
        self._shut_down()
        self._incoming.close()
        self._connection.close()
        if not self._closed:
            self._on_end(f"has not answered for {self._timeout:g} s" if silent else how, silent)

    def _receive(self) -> bool:
        """Until the other side closes the connection, or (true) sent no heartbeat for too long."""
        rest = b""
        received = sent = time.monotonic()
        while True:
            try:
                data = self._incoming.recv(2**16)
                if not data:
                    return False
            except TimeoutError:
                data = b""
            *sealed, rest = (rest + data).split(b"\n")
            for line in sealed:
                self._handle(self._lines.open(line))
            if len(rest) > MAX_LINE:
                raise ValueError("a line that is too long")
            now = time.monotonic()
            received = now if sealed else received
            if now - received > self._timeout:
                return True
            if now - sent > HEARTBEAT_INTERVAL:
                sent = now
                self._send_line(_HEARTBEAT)

    def _handle(self, line: bytes) -> None:
        if line == _HEARTBEAT:
            return
        message = json.loads(line)
        if not isinstance(message, list) or len(message) != 2:
            raise ValueError("not a message")
        self._on_message(parse(*message))

    def _shut_down(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
