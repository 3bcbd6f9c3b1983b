"""One attempt: torch's elastic agent starts the workers and watches them; here is how it stops them.

Imported when workers are started, since it needs torch.
"""

import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.handover import LastWord
from samestep.launch.failure import Failure
from samestep.launch.requests import StopRequests

PEER_SECONDS = 10.0
"""How long the peers of a rank that ended badly may take to end by themselves, and to say why."""
_POLL_SECONDS = 0.1


def attempt(command: Sequence[str], nproc: int, launch_id: str, folder: Path, stop: StopRequests) -> list[Failure]:
    """Run `command` once, `nproc` times at the same time; returns the ranks that did not end well."""
    with _quiet():
        # A port is chosen by the system when the store opens it, so nobody can take it in between.
        meeting = RendezvousParameters("c10d", "localhost:0", launch_id, 1, 1, local_addr="127.0.0.1", is_host=True)
        spec = WorkerSpec(
            role="default",
            local_world_size=nproc,
            rdzv_handler=get_rendezvous_handler(meeting),
            entrypoint=command[0],
            args=tuple(word.replace("$", "$$") for word in command[1:]),  # the agent fills in $-templates
            max_restarts=0,
            monitor_interval=_POLL_SECONDS,
            local_addr="127.0.0.1",
        )
        agent = _Agent(spec, _Outputs(folder), stop)
        try:
            result = agent.run()
            return agent.failures(result)
        except SignalException:  # came while workers were being started: the agent has ended them
            return [Failure(0, EXIT_PREEMPTED)]
        finally:
            stop.ended()
            spec.rdzv_handler.shutdown()


class _Agent(LocalElasticAgent):
    """torch's agent, but signals go to the ranks once, and a rank that ends badly gives its peers time to follow."""

    def __init__(self, spec: WorkerSpec, outputs: "_Outputs", stop: StopRequests) -> None:
        super().__init__(spec, logs_specs=outputs, exit_barrier_timeout=10)
        self._outputs, self._stop = outputs, stop
        self._processes: dict[int, int] = {}
        self._ended: dict[int, float] = {}
        self._broken_at: float | None = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids = super()._start_workers(worker_group)
        self._processes = dict(ids)
        self._stop.listen()  # starting workers put torch's own handlers in place
        self._stop.started(list(ids.values()))
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        running = []
        for rank, process in self._processes.items():
            badly = _ended_badly(process)
            if badly is None:
                running.append(process)
                continue
            self._ended.setdefault(rank, time.time())
            if badly and self._broken_at is None:
                self._broken_at = time.monotonic()
        if not running:
            return super()._monitor_workers(worker_group)
        waited = 0.0 if self._broken_at is None else time.monotonic() - self._broken_at
        if self._stop.overdue or waited > PEER_SECONDS:
            self._stop.kill(running)
        return RunResult(state=WorkerState.HEALTHY)

    def failures(self, result: RunResult) -> list[Failure]:
        """The ranks that did not end with 0, with what they left to say."""
        return [
            Failure(
                rank,
                failed.exitcode,
                self._ended.get(rank, time.time()),
                LastWord.read(failed.error_file_data),
                self._outputs.stderr(rank) if rank else None,
                ended_by_us=failed.pid in self._stop.killed,
            )
            for rank, failed in result.failures.items()
        ]


class _Outputs(LogsSpecs):
    """Rank 0 has the terminal itself, so that its progress bar works; the others write to files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(log_dir=str(folder))
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        """Where the files are."""
        return str(self._folder)

    def stdout(self, rank: int) -> Path:
        """What a rank printed."""
        return self._folder / f"rank_{rank}.out"

    def stderr(self, rank: int) -> Path:
        """What a rank printed of errors."""
        return self._folder / f"rank_{rank}.err"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The files of every rank; an empty name is the terminal."""
        self._folder.mkdir(parents=True, exist_ok=True)
        words = {rank: str(self._folder / f"rank_{rank}.json") for rank in envs}
        for rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = words[rank]
        return LogsDest(
            stdouts={rank: str(self.stdout(rank)) if rank else "" for rank in envs},
            stderrs={rank: str(self.stderr(rank)) if rank else "" for rank in envs},
            tee_stdouts={},
            tee_stderrs={},
            error_files=words,
        )


def _ended_badly(process: int) -> bool | None:
    """Whether a worker ended with anything but 0; None: it still runs. Its status stays for the agent to collect."""
    try:
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # collected already
        return False
    return None if status is None else status.si_code != os.CLD_EXITED or status.si_status != 0


@contextmanager
def _quiet() -> Iterator[None]:
    """The agent logs what the launcher says better itself."""
    logger = logging.getLogger("torch.distributed.elastic")
    silent, passes_on = logging.NullHandler(), logger.propagate
    logger.addHandler(silent)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.propagate = passes_on
        logger.removeHandler(silent)
