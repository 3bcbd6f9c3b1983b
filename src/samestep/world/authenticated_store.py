"""The store through which ranks find each other, with every entry proved to be of this run.

torch's TCPStore lets whoever reaches its port read, list, change and delete every key. So each name goes to the server
as an HMAC of it, and each value with an HMAC over name and value. What another program wrote is an error, or, for a
report that may be there or not, as if it were not there. Process groups of torch use this store too.

Still possible for a stranger who reaches the port: to read values, to delete entries, or to put an older entry of the
same name and the same store back. That can end a run, and cannot put in what no rank of it has written.
"""

import hmac
import random
import secrets
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from samestep.core import secret
from samestep.core.errors import RunFailed

_PROOF, _NONCE = 32, 8


class NotAuthentic(RunFailed):
    """An entry of the store was not written by a process of this run."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the entry {name!r} in the store of this run was not written by its ranks: another program writes to the "
            "store's port, or the ranks have different secrets"
        )


class AuthenticatedStore(Store):
    """A store whose entries only processes with the same key can write."""

    def __init__(self, inner: Any, key: bytes) -> None:
        super().__init__()
        self.inner, self._key = inner, key
        super().set_timeout(inner.timeout)
        self._clones: list[AuthenticatedStore] = []

    def set(self, key: str, value: str | bytes) -> None:
        self.inner.set(self._name(key), self._sealed(key, value))

    def get(self, key: str) -> bytes:
        """A value; waits for it."""
        return self._opened(key, self.inner.get(self._name(key)))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Replace several values."""
        self.inner.multi_set([self._name(key) for key in keys], [self._sealed(k, v) for k, v in zip(keys, values)])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Several values; waits for them."""
        found = self.inner.multi_get([self._name(key) for key in keys])
        return [self._opened(key, value) for key, value in zip(keys, found)]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace a value by `desired` if it is `expected` (empty: if there is none); returns what is there then."""
        while True:
            before = self._current(key)
            value = before and self._opened(key, before)
            if value != _bytes(expected):
                return value
            if self._replace(key, before, desired):
                return _bytes(desired)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; returns the sum. The server's own sums could not be authenticated."""
        pause = 0.0005
        while True:
            before = self._current(key)
            total = int(self._opened(key, before) if before else 0) + amount
            if (before and amount == 0) or self._replace(key, before, str(total)):
                return total
            time.sleep(random.uniform(0, pause))  # others add at the same time
            pause = min(2 * pause, 0.05)

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a value."""
        before = self._current(key)
        while not self._replace(key, before, (before and self._opened(key, before)) + _bytes(value)):
            before = self._current(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are there; by whomever they were written."""
        return self.inner.check([self._name(key) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all of these are there."""
        names = [self._name(key) for key in keys]
        self.inner.wait(names, *([timeout] if timeout else []))

    def delete_key(self, key: str) -> bool:
        """Remove an entry; whether there was one."""
        return self.inner.delete_key(self._name(key))

    def num_keys(self) -> int:
        """How many entries there are."""
        return self.inner.num_keys()

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 (by these names, torch calls them from C++)

    def has_extended_api(self) -> bool:
        """Whether several entries can be written and read at once."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` wait."""
        super().set_timeout(timeout)
        self.inner.set_timeout(timeout)

    def clone(self) -> "AuthenticatedStore":
        """Another connection to the same store."""
        self._clones.append(AuthenticatedStore(self.inner.clone(), self._key))  # torch would hold its C++ part only
        return self._clones[-1]

    def derive_key(self, purpose: str) -> bytes:
        """A key for something else that only processes with this store's key may do."""
        return secret.derive_key(self._key, purpose)

    def _name(self, key: str) -> str:
        return hmac.digest(self._key, b"name " + key.encode(), "sha256").hex()

    def _current(self, key: str) -> bytes:
        """What the server has under a name; empty if nothing."""
        return self.inner.get(self._name(key)) if self.inner.check([self._name(key)]) else b""

    def _replace(self, key: str, before: bytes, value: str | bytes) -> bool:
        """Replace what the server has, unless it was replaced meanwhile. No two sealed values are ever equal."""
        sealed = self._sealed(key, value)
        return self.inner.compare_set(self._name(key), before, sealed) == sealed

    def _sealed(self, key: str, value: str | bytes) -> bytes:
        data = secrets.token_bytes(_NONCE) + _bytes(value)
        return self._proof(key, data) + data

    def _opened(self, key: str, sealed: bytes) -> bytes:
        proof, data = sealed[:_PROOF], sealed[_PROOF:]
        if not hmac.compare_digest(proof, self._proof(key, data)):
            raise NotAuthentic(key)
        return data[_NONCE:]

    def _proof(self, key: str, data: bytes) -> bytes:
        return hmac.digest(self._key, b"value " + key.encode() + b"\0" + data, "sha256")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
