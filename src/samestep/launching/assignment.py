"""What a node does in an attempt, and by when its ranks must have ended. Imports no torch."""

import time
from dataclasses import dataclass

from samestep.launching.stop_requests import StopRequests

PEER_SECONDS = 7.0
"""How long the peers of a rank that failed may take to end by themselves and write their exit reports."""


@dataclass(frozen=True)
class NodeAssignment:
    """What this node does in an attempt: which ranks run here, and where the store of all ranks is."""

    address: str
    port: int
    launch_id: str
    world_size: int
    first_rank: int = 0
    node: int = 0
    nodes: int = 1


class AttemptDeadline:
    """When the ranks of an attempt must have ended: there is a deadline once a rank failed, here or elsewhere."""

    def __init__(self) -> None:
        self.stop_asked = False
        """The ranks are to stop in good order."""
        self._end = float("inf")

    def end_within(self, seconds: float, *, ask: bool = False) -> None:
        """Ranks that still run so many seconds from now are killed; `ask`: ask them to stop first. From any thread."""
        self._end = min(self._end, time.monotonic() + seconds)
        self.stop_asked = self.stop_asked or ask

    def rank_failed(self, seconds: float) -> None:
        """A rank of this node failed; the others have so many seconds to end."""
        self.end_within(seconds)

    def poll(self, stop: StopRequests) -> None:
        """Called often, by the thread that runs the attempt; for what other nodes send."""

    @property
    def is_past(self) -> bool:
        """Whether the ranks had their time to end."""
        return time.monotonic() > self._end
