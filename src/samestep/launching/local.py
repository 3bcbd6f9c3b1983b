"""Start workers on this machine, each a fresh process that already has torch imported.

The parent holds the rendezvous store, as torchrun's agent does: no port is guessed, and what a failing rank wrote
there remains. Workers are forked from a clean server process, so starting one costs milliseconds, not the
seconds that importing torch takes, and nothing of the parent (threads, devices) is inherited. Where a library uses a
GPU as soon as the server imports it (torchao with transformers), each worker is a fresh Python instead: CUDA cannot be
used after a fork.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from samestep.core import launch_env
from samestep.core.safe_files import open_file
from samestep.core.secret import new_secret
from samestep.core.store_server import LOCALHOST, serve_store

_DEVICE_WAS_USED = 3
PEER_TIMEOUT = 10.0
"""Seconds that the peers of a dead rank get to report that themselves."""


@dataclass
class Workers:
    """The processes of one attempt, by rank."""

    processes: Sequence[BaseProcess]
    logs: Path
    store: Any = field(repr=False)  # kept alive as long as the workers

    def wait(self, timeout: float) -> list[int | None]:
        """Exit codes by rank (negative: the signal). A failing rank ends the others; None: killed at the timeout."""
        end = time.monotonic() + timeout
        while any(p.is_alive() for p in self.processes) and time.monotonic() < end:
            if any(p.exitcode not in (None, 0) for p in self.processes):
                end = min(end, time.monotonic() + PEER_TIMEOUT)
            time.sleep(0.02)
        late = [p.is_alive() for p in self.processes]
        self.kill()
        return [None if is_late else p.exitcode for p, is_late in zip(self.processes, late)]

    def kill(self, *ranks: int) -> None:
        """SIGKILL these ranks, or all; returns when they are gone."""
        chosen = [self.processes[r] for r in ranks] or list(self.processes)
        for process in chosen:
            if process.is_alive():
                process.kill()
        for process in chosen:
            process.join()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank."""
        for process in self.processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def output(self, rank: int) -> str:
        """What a rank printed so far."""
        path = self.logs / f"output_{rank}.txt"
        return path.read_text(errors="replace") if path.exists() else ""


def start(
    target: Callable[..., object],
    nproc: int,
    *args: object,
    logs: Path,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] = ("torch",),
) -> Workers:
    """Run `target(*args)` in `nproc` processes that find each other; it is imported by name in each."""
    logs.mkdir(parents=True, exist_ok=True)
    store = serve_store(only_here=True)
    context: Any = _context(tuple(preload))
    shared = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC")},
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        launch_env.LAUNCHER: "local",
        launch_env.SECRET: new_secret(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        **(env or {}),
    }
    processes = []
    for rank in range(nproc):
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(
            target=_run_worker, args=(own, logs / f"output_{rank}.txt", target, args), daemon=False
        )
        process.start()
        processes.append(process)
    return Workers(processes, logs, store)


@cache
def _context(preload: Sequence[str]) -> multiprocessing.context.BaseContext:
    """How workers are started. The server starts once, with what the first caller has it import."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(preload))
    probe = server.Process(target=_look_for_device_use)
    probe.start()
    probe.join()
    return multiprocessing.get_context("spawn") if probe.exitcode == _DEVICE_WAS_USED else server


def _look_for_device_use() -> None:
    """End with a code of its own if a device was used before this process was forked."""
    import torch

    if any(getattr(torch, device)._is_in_bad_fork() for device in ("cuda", "xpu")):
        sys.exit(_DEVICE_WAS_USED)


def _run_worker(env: Mapping[str, str], output: Path, target: Callable[..., object], args: Sequence[object]) -> None:
    """Become a worker: its environment, its output file, its threads; then the target."""
    os.environ.clear()
    os.environ.update(env)
    with open_file(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_end_with_parent, name="watch parent", daemon=True).start()
    import torch

    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # torch was imported before the variable was set
    code = target(*args)
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone; the fork server in between would not end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
