"""A connection between the launchers of two nodes: lines of JSON, and heartbeats in between."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from samestep.core.records import Json

HEARTBEAT_INTERVAL = 1.0
"""Seconds between heartbeats."""
TIMEOUT = 10.0
"""Seconds without a heartbeat after which a node counts as out of reach."""
_MAX_LINE = 8 * 2**20

Content = dict[str, Json]
"""A message without its kind."""


class Link:
    """One end of a connection. Its own thread calls back with each message, and with how the connection ended."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        on_message: Callable[[str, Content], None],
        on_end: Callable[[str, bool], None],
        timeout: float = TIMEOUT,
    ) -> None:
        """`on_message(kind, content)`; `on_end(how, silent)`, once: closed by the other side, or silent too long."""
        connection.settimeout(timeout)
        self._connection, self._on_message, self._on_end, self._timeout = connection, on_message, on_end, timeout
        self._incoming = connection.dup()  # with a timeout of its own
        self._incoming.settimeout(HEARTBEAT_INTERVAL / 4)
        self._sending = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._serve, name="node link", daemon=True).start()

    def send(self, kind: str, **content: Any) -> None:
        """Send a message; if the other side is gone, `on_end` reports that, not this method."""
        line = json.dumps({"kind": kind, **content}).encode() + b"\n"
        with self._sending:
            try:
                self._connection.sendall(line)
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
        except (OSError, ValueError) as error:  # reset, or not our protocol
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
            except TimeoutError:
                if time.monotonic() - received > self._timeout:
                    return True
            else:
                if not data:
                    return False
                received = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(line)
                if len(rest) > _MAX_LINE:
                    raise ValueError("a line that is too long")
            if time.monotonic() - sent > HEARTBEAT_INTERVAL:
                sent = time.monotonic()
                self.send("beat")

    def _handle(self, line: bytes) -> None:
        message = json.loads(line)
        if not isinstance(message, dict) or "kind" not in message:
            raise ValueError("not a message")
        kind = message.pop("kind")
        if kind != "beat":
            self._on_message(kind, message)

    def _shut_down(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
