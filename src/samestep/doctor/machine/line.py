"""Values passed between ranks through the rendezvous store, with a limit on every wait."""

import json
import time
from collections.abc import Callable
from typing import Any

from samestep.core.records import Json

_LOOK = 0.01


class Line:
    """A connection to the store."""

    def __init__(self, store: Any) -> None:  # torch's stubs do not know all methods of a store
        self.store = store

    def tell(self, key: str, value: Json) -> None:
        """Leave a value."""
        self.store.set(key, json.dumps(value))

    def is_told(self, key: str) -> bool:
        """Whether there is a value."""
        return bool(self.store.check([key]))

    def hear(self, key: str, patience: float) -> Json:
        """A value that is, or will be, there; TimeoutError after `patience` seconds."""
        wait_until(lambda: self.is_told(key), patience)
        return json.loads(self.store.get(key))

    def count(self, key: str, by: int = 0) -> int:
        """A number that ranks raise."""
        return int(self.store.add(key, by))

    def another(self) -> "Line":
        """A connection of its own: one that hangs keeps all others from using it."""
        return Line(self.store.clone())


def wait_until(ready: Callable[[], bool], patience: float) -> None:
    """Look until it is so; TimeoutError after `patience` seconds. Signals are heeded in between."""
    end = time.monotonic() + patience
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_LOOK)
