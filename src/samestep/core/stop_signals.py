"""The signals that ask a run to stop."""

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def heeded() -> list[signal.Signals]:
    """Those that count here: `nohup` has a process ignore SIGHUP on purpose."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]
