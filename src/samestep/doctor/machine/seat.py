"""One rank's place in the examination: what every exam may know."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from samestep.doctor.machine.line import Line
from samestep.world.ranks.place import Place
from samestep.world.world import World


@dataclass
class Seat:
    """Who this rank is, who else is there, and how to reach them."""

    place: Place
    line: Line
    """For the exams. The examination itself goes over another one, which no exam can block."""
    out: Path
    """Where runs go, or will go."""
    device: str = "auto"
    timeout: float = 60.0
    """Seconds that every wait has."""
    host: str = field(default_factory=socket.gethostname)
    hosts: list[str | None] = field(default_factory=list)
    """Of every rank; None: it did not come, or does not answer any more."""
    beacon: int = 0
    """The port at which rank 0 tells the time."""
    world: World | None = None
    """Once the process group is open."""
    stuck: bool = False
    """Whether an exam hangs in a thread that was left behind: then this process can only be ended by force."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.place.rank

    @property
    def address(self) -> str:
        """At which this rank reaches rank 0's host."""
        return os.environ.get("MASTER_ADDR") or self.place.address or "127.0.0.1"

    @property
    def present(self) -> list[int]:
        """The ranks that came and answer."""
        return [rank for rank, host in enumerate(self.hosts) if host is not None]

    @property
    def speaks_for_host(self) -> bool:
        """Whether this is the first rank of its host, to measure there what need not be measured twice."""
        return self.hosts.index(self.host) == self.rank

    def joined(self) -> World:
        """The world, in an exam that comes after the group was opened."""
        assert self.world is not None
        return self.world
