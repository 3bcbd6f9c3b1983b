"""Two processes that meet over a network prove to each other that they know the same key, without sending it.

    listener: magic, topic, its nonce     what this is about (8 bytes, known to all), and 32 random bytes
    caller:   its nonce, its proof        HMAC(key, "caller" + both nonces)
    listener: its proof, or a refusal     HMAC(key, "listener" + both nonces)

The caller proves first, so a stranger who connects learns nothing. Afterwards every line carries an HMAC under a key
of this connection alone, with its direction and its number: no line can be forged, repeated, left out or sent back.
"""

import hashlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable

_MAGIC = b"samestep 2\n"
_TOPIC, _NONCE, _PROOF = 8, 32, 32
_REFUSED = b"\0" * _PROOF
TIMEOUT = 5.0
"""Seconds that a process which connects has to prove itself."""
_PENDING = 64
"""Connections that have not proved themselves yet, at most; the oldest makes room for another one."""
MAX_LINE = 8 * 2**20


class NotTrusted(Exception):
    """The other side does not know the key, or what came was not written by who does."""


class Lines:
    """Authenticates the lines of one connection. Each direction has its own count, so each side needs one."""

    def __init__(self, key: bytes, sends: bytes, receives: bytes) -> None:
        self._send_key = hmac.digest(key, sends, "sha256")
        self._receive_key = hmac.digest(key, receives, "sha256")
        self._sent = self._received = 0

    def seal(self, line: bytes) -> bytes:
        """The next line to send, with its proof."""
        proof = _proof(self._send_key, self._sent, line)
        self._sent += 1
        return proof + b" " + line + b"\n"

    def open(self, sealed: bytes) -> bytes:
        """The line in what came next (without the newline)."""
        proof, _, line = sealed.partition(b" ")
        if not hmac.compare_digest(proof, _proof(self._receive_key, self._received, line)):
            raise NotTrusted("a line that the other side did not send")
        self._received += 1
        return line


def _proof(key: bytes, number: int, line: bytes) -> bytes:
    return hmac.digest(key, b"%d " % number + line, "sha256").hex().encode()


def call(connection: socket.socket, key: bytes, topic: str = "", timeout: float = TIMEOUT) -> Lines:
    """Prove to the listener on the other side that this process knows the key, and have it prove the same.

    A listener for another topic, such as another job, is a ConnectionError like any other program.
    """
    end = time.monotonic() + timeout
    if _receive(connection, len(_MAGIC) + _TOPIC, end) != _MAGIC + _topic(topic):
        raise ConnectionError("another program answers there")
    theirs, ours = _receive(connection, _NONCE, end), secrets.token_bytes(_NONCE)
    nonces = theirs + ours
    connection.sendall(ours + hmac.digest(key, b"caller" + nonces, "sha256"))
    proof = _receive(connection, _PROOF, end)
    if not hmac.compare_digest(proof, hmac.digest(key, b"listener" + nonces, "sha256")):
        raise NotTrusted("the other side does not know the secret")
    return Lines(hmac.digest(key, b"lines" + nonces, "sha256"), b"caller", b"listener")


def answer(connection: socket.socket, key: bytes, topic: str = "", timeout: float = TIMEOUT) -> Lines:
    """The listener's part of `call`."""
    end = time.monotonic() + timeout
    ours = secrets.token_bytes(_NONCE)
    connection.sendall(_MAGIC + _topic(topic) + ours)
    theirs = _receive(connection, _NONCE, end)
    nonces = ours + theirs
    proof = _receive(connection, _PROOF, end)
    if not hmac.compare_digest(proof, hmac.digest(key, b"caller" + nonces, "sha256")):
        connection.sendall(_REFUSED)
        raise NotTrusted("the other side does not know the secret")
    connection.sendall(hmac.digest(key, b"listener" + nonces, "sha256"))
    return Lines(hmac.digest(key, b"lines" + nonces, "sha256"), b"listener", b"caller")


def _topic(topic: str) -> bytes:
    return hashlib.sha256(topic.encode()).digest()[:_TOPIC]


def _receive(connection: socket.socket, count: int, end: float) -> bytes:
    """So many bytes, before `end`."""
    data = b""
    while len(data) < count:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return data


class Listener:
    """Answers everyone who connects, and hands on those who prove that they know the key.

    Strangers can neither use it up nor end it: each has some seconds, and there is room for a fixed number of them.
    """

    def __init__(
        self, server: socket.socket, key: bytes, admit: Callable[[socket.socket, Lines], None], topic: str = ""
    ) -> None:
        """`admit` is called in a thread of the connection."""
        self._server, self._key, self._admit, self._topic = server, key, admit, topic
        self._pending: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Accept connections, in a thread of its own, until `close`."""
        threading.Thread(target=self._accept, name="accept connections", daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        _shut_down(self._server)  # wakes up the thread
        self._server.close()

    def _accept(self) -> None:
        while self._server.fileno() >= 0:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed; or no descriptor is left, until some who connected have had their time
                time.sleep(0.05)
                continue
            self._make_room(connection)
            try:
                threading.Thread(target=self._answer, args=(connection,), name="answer", daemon=True).start()
            except RuntimeError:  # no more threads; it may come again
                self._drop(connection)

    def _make_room(self, connection: socket.socket) -> None:
        with self._lock:
            self._pending[connection] = None
            if len(self._pending) > _PENDING:
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                _shut_down(oldest)

    def _answer(self, connection: socket.socket) -> None:
        try:
            lines = answer(connection, self._key, self._topic)
        except (OSError, NotTrusted):
            lines = None
        if lines is None:
            self._drop(connection)
            return
        with self._lock:
            self._pending.pop(connection, None)
        self._admit(connection, lines)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._pending.pop(connection, None)
        connection.close()


def _shut_down(connection: socket.socket) -> None:
    """Wake up the thread that waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
