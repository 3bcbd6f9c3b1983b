"""Requests to stop, as the launcher gets them: passed on to every worker once, followed up after the grace time."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from samestep.core.errors import EXIT_INTERRUPTED

ONE_PRESS = 0.1
"""Seconds within which signals count as one: a wrapper may pass on the Ctrl-C that the terminal sent as well."""
_PASSED_ON = {  # what arrives here, and what the workers get, who know of no terminal that is hung up
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,
}


class StopRequests(AbstractContextManager["StopRequests"]):
    """While entered, signals to this process stop its workers: in good order at first, at once on a second Ctrl-C."""

    def __init__(self, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.reason: signal.Signals | None = None
        self.at_once = False
        """A second Ctrl-C came."""
        self.killed: set[int] = set()
        """Processes that were killed from here."""
        self.grace = grace
        self._clock, self._since = clock, 0.0
        self._pressed: float | None = None  # when a signal first came to this process itself
        self._workers: Sequence[int] = ()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        ignored = [number for number in _PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in _PASSED_ON if number not in ignored}
        self.listen()  # not to what was ignored on purpose, as nohup does
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals; again after somebody else took them."""
        for number in self._before:
            signal.signal(number, self._receive)

    def started(self, workers: Sequence[int]) -> None:
        """These processes, each the leader of its group, are to be stopped; a request that came before reaches them."""
        self._workers = workers
        if self.reason is not None:
            self._pass_on(self.reason)

    def ended(self) -> None:
        """There are no workers any more; what they left behind in their groups goes too."""
        for process in self._workers:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        self._workers = ()

    @property
    def overdue(self) -> bool:
        """Whether the workers had their time to stop."""
        return self.reason is not None and self._clock() - self._since > self.grace

    def kill(self, workers: Sequence[int]) -> None:
        """End these workers by force, with all that they started."""
        self.killed.update(workers)
        for process in workers:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)

    def request(self, number: signal.Signals) -> None:
        """A request to stop that came to another node."""
        if self.reason is None:
            self.reason, self._since = number, self._clock()
            self._pass_on(number)

    def ask(self) -> None:
        """Have the workers stop in good order, though nobody asked for an end of the whole."""
        if self.reason is None:
            self._pass_on(signal.SIGTERM)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        first = self._pressed if self._pressed is not None else now
        self._pressed = first
        if self.reason is None:
            if number == signal.SIGINT and self._workers:
                _say(b"\nsamestep: stopping after this step, with a save; Ctrl-C again ends at once\n")
            self.request(signal.Signals(number))
        elif number == signal.SIGINT and now - first > ONE_PRESS:
            self.at_once = True
            self.kill(self._workers)
            if not self._workers:
                os._exit(EXIT_INTERRUPTED)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._workers:
            with suppress(OSError):
                os.kill(process, _PASSED_ON[number])


def _say(text: bytes) -> None:
    """Written past Python's buffers, which may be in use at the very moment of a signal."""
    with suppress(OSError):
        os.write(2, text)
