"""One attempt on this node: torch's elastic agent starts its ranks and watches them; here is how they end together.

Imported when workers are started, since it needs torch.
"""

import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from samestep.core import exit_report, launch_env
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.exit_report import ExitReport
from samestep.launch.failure import Failure, tail
from samestep.launch.stop_requests import StopRequests

PEER_SECONDS = 7.0
"""How long the peers of a rank that ended badly may take to end by themselves, and to say why."""


@dataclass(frozen=True)
class NodeAssignment:
    """What this node is in an attempt: which ranks run here, and where all ranks meet."""

    address: str
    port: int
    launch_id: str
    world_size: int
    first_rank: int = 0
    node: int = 0
    nodes: int = 1


class Alarm:
    """What an attempt learns while it runs, and has to end for: a rank that ended badly, here or elsewhere."""

    def __init__(self) -> None:
        self.asked = False
        """The ranks are to stop in good order."""
        self._end = float("inf")

    def ring(self, seconds: float, *, ask: bool = False) -> None:
        """Whoever has not ended so many seconds from now is ended; `ask`: and is asked to. From any thread."""
        self._end = min(self._end, time.monotonic() + seconds)
        self.asked = self.asked or ask

    def broken(self, seconds: float) -> None:
        """A rank of this node ended; the others have so many seconds to follow."""
        self.ring(seconds)

    def look(self, stop: StopRequests) -> None:
        """Called often, by the thread that runs the attempt."""

    @property
    def overdue(self) -> bool:
        """Whether the ranks had their time to end."""
        return time.monotonic() > self._end


_POLL_SECONDS = 0.05
_PARTING_SECONDS = 5.0
"""How long nodes whose ranks are done wait for each other."""


def attempt(
    command: Sequence[str], nproc: int, part: NodeAssignment, folder: Path, stop: StopRequests, alarm: Alarm
) -> list[Failure]:
    """Run `command` once as `nproc` ranks of this node; returns those that did not end well."""
    with _quiet():
        spec = WorkerSpec(
            role="default",
            local_world_size=nproc,
            rdzv_handler=_Settled(part),
            entrypoint=command[0],
            args=tuple(word.replace("$", "$$") for word in command[1:]),  # the agent fills in $-templates
            max_restarts=0,
            monitor_interval=_POLL_SECONDS,
            local_addr=part.address,
        )
        agent = _Agent(spec, _Outputs(folder, part), stop, alarm)
        try:
            return agent.failures(agent.run())
        except SignalException:  # came while workers were being started: the agent has ended them
            return [Failure(part.first_rank, EXIT_PREEMPTED)]
        finally:
            stop.ended()


class _Settled(RendezvousHandler):
    """Who takes part and where all meet is settled before an attempt begins, so there is nothing to negotiate."""

    use_agent_store = True

    def __init__(self, part: NodeAssignment) -> None:
        self._part = part

    def get_backend(self) -> str:
        """A name."""
        return "samestep"

    def next_rendezvous(self) -> RendezvousInfo:
        """This node's number among all, and the store of this attempt."""
        part = self._part
        store = PrefixStore("agents", TCPStore(part.address, part.port, is_master=False, wait_for_workers=False))
        return RendezvousInfo(store, part.node, part.nodes, RendezvousStoreInfo(part.address, part.port))

    def is_closed(self) -> bool:
        """Never before its end."""
        return False

    def set_closed(self) -> None:
        """It ends with the attempt."""

    def num_nodes_waiting(self) -> int:
        """Whoever wants to join tells the launcher."""
        return 0

    def get_run_id(self) -> str:
        """The same for every attempt of a launch."""
        return self._part.launch_id

    def shutdown(self) -> bool:
        """Nothing is held."""
        return True


class _Agent(LocalElasticAgent):
    """torch's agent, but signals go to the ranks once, and a rank that ends badly gives its peers time to follow."""

    def __init__(self, spec: WorkerSpec, outputs: "_Outputs", stop: StopRequests, alarm: Alarm) -> None:
        super().__init__(spec, logs_specs=outputs, exit_barrier_timeout=_PARTING_SECONDS)
        self._outputs, self._stop, self._alarm = outputs, stop, alarm
        self._processes: dict[int, int] = {}
        self._ended: dict[int, float] = {}
        self._asked = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids = super()._start_workers(worker_group)
        self._processes = dict(ids)
        self._stop.listen()  # starting workers put torch's own handlers in place
        self._stop.started(list(ids.values()))
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {local: _exit_code(process) for local, process in self._processes.items()}
        for local, code in codes.items():
            if code is not None:
                self._ended.setdefault(self._outputs.number(local), time.time())
        self._heed(set(codes.values()) - {None, 0})
        running = [self._processes[local] for local, code in codes.items() if code is None]
        if not running:
            return super()._monitor_workers(worker_group)
        if self._stop.overdue or self._alarm.overdue:
            self._stop.kill(running)
        return RunResult(state=WorkerState.HEALTHY)

    def _heed(self, badly: set[int | None]) -> None:
        """Let everybody know of ranks that ended badly here, and hear of those elsewhere."""
        self._alarm.look(self._stop)
        if badly:
            self._alarm.broken(self._stop.grace if badly == {EXIT_PREEMPTED} else PEER_SECONDS)
        if self._alarm.asked and not self._asked:
            self._asked = True
            self._stop.ask()

    def failures(self, result: RunResult) -> list[Failure]:
        """The ranks that did not end with 0, with what they left to say."""
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
    """Rank 0 has the terminal itself, so that its progress bar works; the others write to files."""

    def __init__(self, folder: Path, part: NodeAssignment) -> None:
        super().__init__(log_dir=str(folder))
        self._folder, self._part = folder, part

    @property
    def root_log_dir(self) -> str:
        """Where the files are."""
        return str(self._folder)

    def number(self, local: int) -> int:
        """The rank of a local one."""
        return self._part.first_rank + local

    def stderr(self, rank: int) -> Path:
        """What a rank printed of errors."""
        return self._folder / f"rank_{rank}.err"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The files of every local rank; an empty name is the terminal."""
        self._folder.mkdir(parents=True, exist_ok=True)
        words = {local: str(self._folder / f"rank_{self.number(local)}.json") for local in envs}
        for local, env in envs.items():
            env |= {exit_report.ERROR_FILE: words[local], launch_env.LAUNCH_ID: self._part.launch_id}
        return LogsDest(
            stdouts={local: self._file(local, "out") for local in envs},
            stderrs={local: self._file(local, "err") for local in envs},
            tee_stdouts={},
            tee_stderrs={},
            error_files=words,
        )

    def _file(self, local: int, kind: str) -> str:
        number = self.number(local)
        return str(self._folder / f"rank_{number}.{kind}") if number else ""


def _exit_code(process: int) -> int | None:
    """How a worker ended; None: it still runs. Its status stays for the agent to collect."""
    try:
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # collected already
        return 0
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


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
