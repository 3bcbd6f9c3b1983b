"""Who knows the key gets in; strangers, fakes and tampered lines do not, and nobody can use the listener up."""

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core import handshake
from samestep.core.handshake import Lines, Listener, NotTrusted, call

KEY = b"k" * 32


class Server:
    """A listener that answers each line of who is admitted with the same line."""

    def __init__(self) -> None:
        server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = server.getsockname()[1]
        self.admitted = 0
        self.listener = Listener(server, KEY, self._echo)
        self.listener.start()

    def _echo(self, connection: socket.socket, lines: Lines) -> None:
        self.admitted += 1
        connection.settimeout(10)
        with connection, connection.makefile("rb") as incoming, suppress(NotTrusted):
            for sealed in incoming:
                connection.sendall(lines.seal(lines.open(sealed.rstrip(b"\n"))))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.listener.close()


def echoed(connection: socket.socket, lines: Lines, text: bytes) -> bytes:
    connection.sendall(lines.seal(text))
    with connection.makefile("rb") as incoming:
        return lines.open(incoming.readline().rstrip(b"\n"))


def test_who_knows_the_key_gets_in(server: Server) -> None:
    with server.connect() as connection:
        lines = call(connection, KEY)
        assert [echoed(connection, lines, text) for text in (b"a", b"", b"a b")] == [b"a", b"", b"a b"]


def test_who_does_not_know_it_is_refused(server: Server) -> None:
    with server.connect() as connection, pytest.raises(NotTrusted):
        call(connection, b"x" * 32)
    assert server.admitted == 0


def test_a_listener_that_does_not_know_it_is_not_believed() -> None:
    """It sends back what it gets, the most it can do."""
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def reflect() -> None:
            connection, _ = fake.accept()
            with connection:
                connection.sendall(b"samestep 2\n" + handshake._topic("") + b"n" * 32)
                received = connection.recv(64, socket.MSG_WAITALL)
                connection.sendall(received[32:])

        threading.Thread(target=reflect, daemon=True).start()
        with socket.create_connection(fake.getsockname()) as connection, pytest.raises(NotTrusted):
            call(connection, KEY)


def test_another_program_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP ready\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with socket.create_connection(other.getsockname()) as connection, pytest.raises(ConnectionError):
            call(connection, KEY)


def test_a_listener_for_something_else_is_not_ours(server: Server) -> None:
    with server.connect() as connection, pytest.raises(ConnectionError):
        call(connection, KEY, topic="another job")


def test_a_silent_listener_is_not_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_connection(silent.getsockname()) as connection,
        pytest.raises(TimeoutError),
    ):
        call(connection, KEY, timeout=0.2)


def ends() -> tuple[Lines, Lines]:
    return Lines(KEY, b"caller", b"listener"), Lines(KEY, b"listener", b"caller")


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), min_size=2, max_size=5), st.data())
def test_no_line_can_be_forged_repeated_left_out_or_sent_back(texts: list[bytes], data: st.DataObject) -> None:
    one, other = ends()
    sealed = [one.seal(text)[:-1] for text in texts]
    attack = data.draw(st.sampled_from(["none", "change", "repeat", "leave out", "send back"]))
    at = data.draw(st.integers(0, len(texts) - 1))
    if attack == "send back":
        with pytest.raises(NotTrusted):
            one.open(sealed[0])
        return
    came = list(sealed)
    if attack == "change":
        place = data.draw(st.integers(0, len(came[at]) - 1))
        came[at] = came[at][:place] + bytes([came[at][place] ^ 1]) + came[at][place + 1 :]
    elif attack == "repeat":
        came.insert(at, came[at])
    elif attack == "leave out":
        del came[at]
    try:
        assert [other.open(line) for line in came] == texts[: len(came)]
        assert attack == "none" or (attack == "leave out" and at == len(texts) - 1)
    except NotTrusted:
        assert attack != "none"


def test_strangers_who_connect_and_say_nothing_keep_nobody_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = [server.connect() for _ in range(3 * handshake._PENDING)]
    try:
        for _ in range(3):
            with server.connect() as connection:
                lines = call(connection, KEY)
                assert echoed(connection, lines, b"here") == b"here"
        deadline = time.monotonic() + 5
        while len(server.listener._pending) > handshake._PENDING and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(server.listener._pending) <= handshake._PENDING
    finally:
        for connection in idle:
            connection.close()


def test_strangers_have_some_seconds_only(server: Server) -> None:
    with server.connect() as connection:
        connection.settimeout(handshake.TIMEOUT + 5)
        assert connection.recv(100, socket.MSG_WAITALL).startswith(b"samestep 2\n")  # until it is closed


def test_a_lack_of_descriptors_does_not_end_it(server: Server) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(server.connect())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for connection in taken:
        connection.close()
    with server.connect() as connection:
        lines = call(connection, KEY)
        assert echoed(connection, lines, b"here") == b"here"
