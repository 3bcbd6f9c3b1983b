"""A connection between the launchers of two nodes: lines of JSON, and signs of life in between."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from samestep.core.records import Json

BEAT = 1.0
"""Seconds between signs of life."""
SILENCE = 10.0
"""Seconds without any after which a node is out of reach."""
_LONGEST = 8 * 2**20

Message = dict[str, Json]


class Link:
    """One end of a connection. What arrives, and how it ended, is told to callbacks from a thread of its own."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        arrived: Callable[[str, Message], None],
        ended: Callable[[str, bool], None],
        silence: float = SILENCE,
    ) -> None:
        """`arrived(kind, content)`; `ended(how, silent)`, once: closed by the other side, or out of reach."""
        connection.settimeout(silence)
        self._connection, self._arrived, self._ended, self._silence = connection, arrived, ended, silence
        self._incoming = connection.dup()  # with a patience of its own
        self._incoming.settimeout(BEAT / 4)
        self._sending = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._serve, name="node link", daemon=True).start()

    def send(self, kind: str, **content: Any) -> None:
        """Send a message; if the other side is gone, that is told to `ended`, not here."""
        line = json.dumps({"kind": kind, **content}).encode() + b"\n"
        with self._sending:
            try:
                self._connection.sendall(line)
            except OSError:
                self._shut()

    def close(self) -> None:
        """Part; nobody is told any more."""
        self._closed = True
        self._shut()

    def _serve(self) -> None:
        how, silent = "closed the connection", False
        try:
            silent = self._listen()
        except (OSError, ValueError) as error:  # reset, or no language of ours
            how = f"broke the connection ({error})"
        self._shut()
        self._incoming.close()
        self._connection.close()
        if not self._closed:
            self._ended(f"has not answered for {self._silence:g} s" if silent else how, silent)

    def _listen(self) -> bool:
        """Until the other side closes; true: until it was silent for too long."""
        rest = b""
        heard = said = time.monotonic()
        while True:
            try:
                data = self._incoming.recv(2**16)
            except TimeoutError:
                if time.monotonic() - heard > self._silence:
                    return True
            else:
                if not data:
                    return False
                heard = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line)
                if len(rest) > _LONGEST:
                    raise ValueError("a line without end")
            if time.monotonic() - said > BEAT:
                said = time.monotonic()
                self.send("beat")

    def _take(self, line: bytes) -> None:
        message = json.loads(line)
        if not isinstance(message, dict) or "kind" not in message:
            raise ValueError("not a message")
        kind = message.pop("kind")
        if kind != "beat":
            self._arrived(kind, message)

    def _shut(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
