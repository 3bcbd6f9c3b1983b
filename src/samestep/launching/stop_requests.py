"""Requests to stop that the launcher gets: passed on to every worker once; workers that still run later are killed."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from samestep.core.errors import EXIT_INTERRUPTED
from samestep.core.stop_signals import SIGNALS
from samestep.launching.terminal import hand_to_rank_0

ONE_PRESS = 0.1
"""Seconds within which signals count as one: a wrapper may pass on the Ctrl-C that the terminal sent as well."""


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
        self._first_signal: float | None = None  # when the first signal came to this process itself
        self._workers: Sequence[int] = ()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in SIGNALS if number not in ignored}
        self.install_handlers()  # not for signals that are ignored on purpose, as by nohup
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install_handlers(self) -> None:
        """Handle the signals; to be called again after other code installed its handlers."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def workers_started(self, workers: Sequence[int]) -> None:
        """These processes, each the leader of its group, are to be stopped; an earlier request is passed on now."""
        self._workers = workers
        if self.reason is not None:
            self._send_to_workers(self.reason)

    def workers_ended(self) -> None:
        """There are no workers any more; kill what they left running in their process groups."""
        for process in self._workers:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        self._workers = ()

    @property
    def is_overdue(self) -> bool:
        """Whether the workers had their time to stop."""
        return self.reason is not None and self._clock() - self._since > self.grace

    def kill(self, workers: Sequence[int]) -> None:
        """Kill these workers and all that they started."""
        self.killed.update(workers)
        for process in workers:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)

    def request(self, number: signal.Signals) -> None:
        """Record a request to stop, also one that came to another node, and pass it on."""
        if self.reason is None:
            self.reason, self._since = number, self._clock()
            self._send_to_workers(number)

    def ask_workers_to_stop(self) -> None:
        """Have the workers stop in good order though no signal came: the launch goes on with another attempt."""
        if self.reason is None:
            self._send_to_workers(signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        first = self._first_signal if self._first_signal is not None else now
        self._first_signal = first
        if self.reason is None:
            if number == signal.SIGINT and self._workers:
                line = "samestep: stopping all ranks; Ctrl-C again ends them at once"
                if not hand_to_rank_0(line):
                    _write_stderr(f"\n{line}\n".encode())
            self.request(signal.Signals(number))
        elif number == signal.SIGINT and now - first > ONE_PRESS:
            self.at_once = True
            self.kill(self._workers)
            if not self._workers:
                os._exit(EXIT_INTERRUPTED)

    def _send_to_workers(self, number: signal.Signals) -> None:
        for process in self._workers:
            with suppress(OSError):
                os.kill(process, number)


def _write_stderr(text: bytes) -> None:
    """Without Python's buffers, which may be in use at the very moment of a signal."""
    with suppress(OSError):
        os.write(2, text)
