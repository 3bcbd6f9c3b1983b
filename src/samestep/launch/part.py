"""What a node is in an attempt, and what it hears while that runs."""

import time
from dataclasses import dataclass

from samestep.launch.requests import StopRequests

PEER_SECONDS = 7.0
"""How long the peers of a rank that ended badly may take to end by themselves, and to say why."""


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
