"""One attempt on this node: its ranks are started, watched, and ended together."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core import handover
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.handover import LastWord
from samestep.core.records import read_json
from samestep.launch.failure import Failure, tail
from samestep.launch.requests import StopRequests

PEER_SECONDS = 7.0
"""How long the peers of a rank that ended badly may take to end by themselves, and to say why."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Part:
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


def attempt(
    command: Sequence[str], nproc: int, part: Part, folder: Path, stop: StopRequests, alarm: Alarm
) -> list[Failure]:
    """Run `command` once as `nproc` ranks of this node; returns those that did not end well."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks: list[_Rank] = []
    asked = False
    try:
        try:
            for local in range(nproc):
                ranks.append(_Rank.start(command, local, nproc, part, folder))
        finally:
            stop.started([rank.process.pid for rank in ranks])
        while True:
            running = [rank for rank in ranks if not rank.look()]
            _spread(ranks, stop, alarm)
            if not running:
                break
            if alarm.asked and not asked:
                asked = True
                stop.ask()
            if stop.overdue or alarm.overdue:
                stop.kill([rank.process.pid for rank in running])
            time.sleep(_POLL_SECONDS)
    finally:
        stop.ended()
    return [rank.failure(stop) for rank in ranks if rank.process.returncode]


def _spread(ranks: Sequence["_Rank"], stop: StopRequests, alarm: Alarm) -> None:
    """Let everybody know of a rank that ended, unless it was done."""
    alarm.look(stop)
    codes = {rank.process.returncode for rank in ranks} - {None, 0}
    if codes:
        alarm.broken(stop.grace if codes == {EXIT_PREEMPTED} else PEER_SECONDS)


@dataclass
class _Rank:
    """One worker. Rank 0 has the terminal itself, so that its progress bar works; the others write to files."""

    number: int
    process: subprocess.Popen[bytes]
    folder: Path
    ended: float | None = field(default=None)

    @classmethod
    def start(cls, command: Sequence[str], local: int, nproc: int, part: Part, folder: Path) -> "_Rank":
        number = part.first_rank + local
        words = folder / f"rank_{number}.json"
        env = {**os.environ, **_environment(part, local, nproc), handover.ERROR_FILE: str(words)}
        if number == 0:
            return cls(number, subprocess.Popen(command, env=env, start_new_session=True), folder)
        with open(folder / f"rank_{number}.out", "wb") as out, open(folder / f"rank_{number}.err", "wb") as err:
            process = subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True)
        return cls(number, process, folder)

    def look(self) -> bool:
        """Whether it has ended."""
        if self.process.poll() is not None and self.ended is None:
            self.ended = time.time()
        return self.ended is not None

    def failure(self, stop: StopRequests) -> Failure:
        """How it ended, with what it left to say."""
        assert self.ended is not None
        word = LastWord.read(read_json(self.folder / f"rank_{self.number}.json") or {})
        printed = tail(self.folder / f"rank_{self.number}.err")
        code, by_us = self.process.returncode, self.process.pid in stop.killed
        return Failure(self.number, code, self.ended, word, printed, ended_by_us=by_us)


def _environment(part: Part, local: int, nproc: int) -> dict[str, str]:
    """The variables that torch's own launcher sets, with the same meaning."""
    rank = str(part.first_rank + local)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(part.world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(part.node),
        "GROUP_WORLD_SIZE": str(part.nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(part.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port),
        "TORCHELASTIC_RUN_ID": part.launch_id,
        "TORCHELASTIC_RESTART_COUNT": "0",  # every attempt has a store of its own
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        handover.LAUNCH_ID: part.launch_id,
    }
