"""The messages between the launchers of a launch. All are plain data: none can put a word on a command line."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.core.json_files import Json
from samestep.core.typed_json import from_json
from samestep.launching.assignment import NodeAssignment
from samestep.launching.failure import Failure
from samestep.launching.restart_policy import Decision

PROTOCOL_VERSION = 2
"""Launchers with another version are refused."""


@dataclass(frozen=True)
class Hello:
    """The first message of a node."""

    host: str
    nproc: int
    rank: int | None
    launch: str
    """The id that its launch would have on its own; the leader's own node has the leader's."""
    command: str
    """A hash of the command line."""
    language: int = PROTOCOL_VERSION
    """The key in the message, which all versions must understand."""

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ValueError("a node without ranks")


@dataclass(frozen=True)
class OtherVersion:
    """The hello of a node with another protocol version."""


@dataclass(frozen=True)
class Welcome:
    """To a node: it is admitted."""


@dataclass(frozen=True)
class Refused:
    """To a node: it is not, and why."""

    text: str


@dataclass(frozen=True)
class StartAttempt:
    """To a node: run your ranks."""

    assignment: NodeAssignment
    batch_size: int | None


@dataclass(frozen=True)
class Regroup:
    """To a node: other nodes join, have your ranks stop in good order."""


@dataclass(frozen=True)
class Verdict:
    """To a node: what follows the attempt."""

    decision: Decision


@dataclass(frozen=True)
class StopAttempt:
    """From and to nodes: a stop was requested."""


@dataclass(frozen=True)
class Broken:
    """From and to nodes: a rank failed, and all others have so many seconds to end."""

    seconds: float


@dataclass(frozen=True)
class Report:
    """From a node: how its ranks ended."""

    failures: Sequence[Failure]
    at_once: bool
    now: float
    """Its clock."""


Message = Hello | OtherVersion | Welcome | Refused | StartAttempt | Regroup | Verdict | StopAttempt | Broken | Report
_KINDS: dict[str, type[Message]] = {
    cls.__name__: cls for cls in (Hello, Welcome, Refused, StartAttempt, Regroup, Verdict, StopAttempt, Broken, Report)
}


def parse(kind: Json, content: Json) -> Message:
    """A message as it came; ValueError if no launcher of this version sends that."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError("an unknown message")
    if kind == Hello.__name__ and isinstance(content, dict) and content.get("language") != PROTOCOL_VERSION:
        return OtherVersion()
    return from_json(_KINDS[kind], content)
