"""Which rank failed first, and how to say it: pure functions over what is left of an attempt."""

import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.core.errors import EXIT_MEMORY, EXIT_PREEMPTED, EXIT_USER
from samestep.core.exit_report import ExitReport
from samestep.core.records import Json

_LINES = 60
"""How much of a traceback or of a rank's output is shown; its log has all."""
_REACTIONS = (signal.SIGABRT, signal.SIGTERM)
"""Signals that a rank may die of because another one failed."""


@dataclass(frozen=True)
class Failure:
    """How one rank ended, when not with 0."""

    rank: int
    code: int
    """The exit code; negative: the signal that ended it."""
    seen: float = 0.0
    """When the launcher noticed."""
    word: ExitReport | None = None
    printed: str = ""
    """The last that the rank printed of errors, where that did not go to the terminal."""
    ended_by_us: bool = False
    host: str = field(default_factory=socket.gethostname)

    @property
    def is_stop(self) -> bool:
        """Stopped in good order."""
        return self.code == EXIT_PREEMPTED

    @property
    def is_user_error(self) -> bool:
        """Something the user must mend: another attempt would end in the same way."""
        return self.code == EXIT_USER

    @property
    def is_memory(self) -> bool:
        """Out of memory: a smaller micro-batch may fit."""
        return self.code == EXIT_MEMORY

    @property
    def time(self) -> float:
        """When the rank failed, by its own account if it gave one."""
        return self.word.time if self.word else self.seen

    def to_json(self) -> dict[str, Json]:
        """As plain data, for another node."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Json], shift: float = 0.0) -> "Failure":
        """What `to_json` gave; `shift` is how far the clock here is before the clock there."""
        word = ExitReport(**{**data["word"], "time": data["word"]["time"] + shift}) if data["word"] else None
        return cls(**{**data, "seen": data["seen"] + shift, "word": word})


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others followed from, or the stop that all agreed on."""
    stopped = any(failure.is_stop for failure in failures)
    return min(failures, key=lambda failure: _order(failure, stopped))


def _order(failure: Failure, stopped: bool) -> tuple[int, float, int]:
    """Killed from outside; a failure of its own, the earliest first; a stop; mere consequences."""
    word = failure.word
    if failure.ended_by_us or (word and word.echo):
        return 4, failure.seen, failure.rank
    if word and word.kind == "hung":  # whoever was stuck may have been killed by its neighbours
        return 0, 0.0, failure.rank
    if failure.is_stop:
        return 2, failure.seen, failure.rank
    if failure.code > 0:
        return 1, failure.time, failure.rank
    if stopped or -failure.code in _REACTIONS:  # the run was saved before a rank died in parting
        return 3, failure.seen, failure.rank
    return 0, failure.seen, failure.rank  # nothing that another rank does can bring this about


def last_word(failure: Failure) -> ExitReport:
    """What the rank said, or what can be said for it."""
    if failure.word is not None:
        return failure.word
    if failure.code < 0:
        name = signal_name(-failure.code)
        hint = ", perhaps by the system because memory ran out" if name == "SIGKILL" and not failure.ended_by_us else ""
        text = f"was killed by {name}{hint}"
    else:
        text = f"ended with exit code {failure.code}"
    return ExitReport(text, failure.code, failure.rank, failure.host, traceback=failure.printed)


def headline(failure: Failure, *, brief: bool = False) -> str:
    """One sentence, and the traceback where there is one, unless it is to be `brief`."""
    word = last_word(failure)
    if failure.word and (failure.is_user_error or word.kind == "hung"):  # the sentence names the rank that matters
        return f"samestep: {word.text}"
    first_line = (word.text.splitlines() or [""])[0] if word.traceback else word.text
    said = f"samestep: rank {word.rank} on {word.host} {'failed: ' if failure.word else ''}{first_line}"
    lines = [] if brief else word.traceback.rstrip().splitlines()
    shown = ["..."] * (len(lines) > _LINES) + lines[-_LINES:]
    return "\n".join([said, *(f"  {line}" for line in shown)])


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(path: Path) -> str:
    """The last lines of what a rank printed; nothing where it printed to the terminal."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LINES:])
