"""One attempt on this node: torch's elastic agent starts the ranks and watches them; this file makes them end together.

Imported when workers are started, since it needs torch.
"""

import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from samestep.core import exit_report, launch_env
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.exit_report import ExitReport
from samestep.launching.assignment import PEER_SECONDS, AttemptDeadline, NodeAssignment
from samestep.launching.failure import Failure, tail
from samestep.launching.stop_requests import StopRequests
from samestep.launching.terminal import show_waiting_lines

_POLL_SECONDS, _LOOK_SECONDS = 0.05, 1.0


def run_attempt(
    command: Sequence[str],
    nproc: int,
    assignment: NodeAssignment,
    folder: Path,
    stop: StopRequests,
    deadline: AttemptDeadline,
) -> list[Failure]:
    """Run `command` once as `nproc` ranks of this node; returns those that did not end well."""
    with _quiet():
        spec = WorkerSpec(
            role="default",
            local_world_size=nproc,
            rdzv_handler=_FixedRendezvous(assignment),
            entrypoint=command[0],
            args=tuple(arg.replace("$", "$$") for arg in command[1:]),  # the agent fills in $-templates
            max_restarts=0,
            monitor_interval=_POLL_SECONDS,
            local_addr=assignment.address,
        )
        agent = _Agent(spec, assignment, _Outputs(folder, assignment), stop, deadline)
        try:
            return agent.failures(agent.run())
        except SignalException:  # came while workers were being started: the agent has ended them
            return [Failure(assignment.first_rank, EXIT_PREEMPTED)]
        finally:
            stop.workers_ended()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes that begin here get no SIGINT until they have a handler for it (core/interrupt.py)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _FixedRendezvous(RendezvousHandler):
    """Nodes, ranks and the store are fixed before an attempt begins, so there is nothing to negotiate."""

    use_agent_store = True

    def __init__(self, assignment: NodeAssignment) -> None:
        self._assignment = assignment

    def get_backend(self) -> str:
        """A name for log messages."""
        return "samestep"

    def next_rendezvous(self) -> RendezvousInfo:
        """This node's number among all, and where the ranks' store is. Agents have nothing to tell each other."""
        assignment = self._assignment
        where = RendezvousStoreInfo(assignment.address, assignment.port)
        return RendezvousInfo(HashStore(), assignment.node, assignment.nodes, where)

    def is_closed(self) -> bool:
        """Never before its end."""
        return False

    def set_closed(self) -> None:
        """It ends with the attempt."""

    def num_nodes_waiting(self) -> int:
        """A node that wants to join connects to the launcher instead."""
        return 0

    def get_run_id(self) -> str:
        """The same for every attempt of a launch."""
        return self._assignment.launch_id

    def shutdown(self) -> bool:
        """There is nothing to close."""
        return True


class _Agent(LocalElasticAgent):
    """torch's agent, but signals go to the ranks once, and the peers of a rank that fails get time to end."""

    def __init__(
        self,
        spec: WorkerSpec,
        assignment: NodeAssignment,
        outputs: "_Outputs",
        stop: StopRequests,
        deadline: AttemptDeadline,
    ) -> None:
        super().__init__(spec, logs_specs=outputs)
        self._assignment, self._outputs, self._stop, self._deadline = assignment, outputs, stop, deadline
        self._processes: dict[int, int] = {}
        self._ended: dict[int, float] = {}
        self._stop_sent, self._looked = False, 0.0

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """The ranks of this node, as assigned. torch's agents would wait for each other, for minutes if one died."""
        first, size = self._assignment.first_rank, self._assignment.world_size
        return [Worker(local, first + local, first + local, size, size) for local in range(spec.local_world_size)]

    def _exit_barrier(self) -> None:
        """Nothing: the launchers of the nodes know themselves when all are done."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with _interrupts_held_back():
            ids = super()._start_workers(worker_group)
        self._processes = dict(ids)
        self._stop.install_handlers()  # again, since starting workers installs torch's own
        self._stop.workers_started(list(ids.values()))
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {local: _exit_code(process) for local, process in self._processes.items()}
        for local, code in codes.items():
            if code is not None:
                self._ended.setdefault(self._outputs.rank_of(local), time.time())
        self._react_to_failures(set(codes.values()) - {None, 0})
        self._show_lines()
        running = [self._processes[local] for local, code in codes.items() if code is None]
        if not running:
            return super()._monitor_workers(worker_group)
        if self._stop.is_overdue or self._deadline.is_past:
            self._stop.kill(running)
        return RunResult(state=WorkerState.HEALTHY)

    def _show_lines(self) -> None:
        """Print what ranks have to say whose output goes to files."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            show_waiting_lines(Path(os.environ[launch_env.FOLDER]))

    def _react_to_failures(self, failure_codes: set[int | None]) -> None:
        """Set a deadline for the peers of ranks that failed here, and follow one that was set elsewhere."""
        self._deadline.poll(self._stop)
        if failure_codes:
            self._deadline.rank_failed(self._stop.grace if failure_codes == {EXIT_PREEMPTED} else PEER_SECONDS)
        if self._deadline.stop_asked and not self._stop_sent:
            self._stop_sent = True
            self._stop.ask_workers_to_stop()

    def failures(self, result: RunResult) -> list[Failure]:
        """The ranks that did not end with 0, with their exit reports."""
        return [
            Failure(
                rank,
                failed.exitcode,
                self._ended.get(rank, time.time()),
                ExitReport.from_error_file(failed.error_file_data),
                tail(self._outputs.stderr(rank)) if rank else "",
                ended_by_us=failed.pid in self._stop.killed,
            )
            for rank, failed in result.failures.items()
        ]


class _Outputs(LogsSpecs):
    """Rank 0 writes to the terminal itself, so that its progress bar works; the others write to files."""

    def __init__(self, folder: Path, assignment: NodeAssignment) -> None:
        super().__init__(log_dir=str(folder))
        self._folder, self._assignment = folder, assignment

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def rank_of(self, local: int) -> int:
        return self._assignment.first_rank + local

    def stderr(self, rank: int) -> Path:
        """The file with what a rank wrote to stderr."""
        return self._folder / f"rank_{rank}.err"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The files of every local rank; an empty name is the terminal."""
        self._folder.mkdir(parents=True, exist_ok=True)
        report_files = {local: str(self._folder / f"rank_{self.rank_of(local)}.json") for local in envs}
        for local, env in envs.items():
            env |= {exit_report.ERROR_FILE: report_files[local], launch_env.LAUNCH_ID: self._assignment.launch_id}
        return LogsDest(
            stdouts={local: self._file(local, "out") for local in envs},
            stderrs={local: self._file(local, "err") for local in envs},
            tee_stdouts={},
            tee_stderrs={},
            error_files=report_files,
        )

    def _file(self, local: int, kind: str) -> str:
        rank = self.rank_of(local)
        return str(self._folder / f"rank_{rank}.{kind}") if rank else ""


def _exit_code(process: int) -> int | None:
    """The exit code of a worker; None: it still runs. Its status is left for the agent to collect."""
    try:
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # collected already
        return 0
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the agent's log, since the launcher reports the same better."""
    logger = logging.getLogger("torch.distributed.elastic")
    silent, propagate = logging.NullHandler(), logger.propagate
    logger.addHandler(silent)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(silent)
