"""The first node's launcher leads: it waits for the nodes, gives out the ranks, and judges how an attempt ended.

All decisions are made here, one after the other, in one thread; the nodes carry them out. If this node is lost, the
others end by themselves: the run resumes from its last checkpoint when it is started again.
"""

import itertools
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samestep.core.errors import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_USER
from samestep.core.exit_report import ExitReport
from samestep.launch.attempt import PEER_SECONDS, NodeAssignment
from samestep.launch.failure import Failure
from samestep.launch.nodes.link import SILENCE, Link, Message
from samestep.launch.nodes.options import Nodes
from samestep.launch.restart_policy import AttemptEnd, Decision, RestartPolicy

LANGUAGE = 1
"""Launchers that speak another one are refused."""
LAST_CALL = 5.0
"""Seconds that more nodes may take to come, at the start, when there are enough but not yet all."""
_SETTLE = 2.0
"""Seconds that a newcomer waits for others before the ranks are stopped for it."""
_PATIENCE = 1.2 * SILENCE
"""A node that is cut off ends its ranks before it is counted out here, so no two lots of ranks hold the same run."""
_PARTING = 5.0


@dataclass(frozen=True)
class Hello:
    """What a node says of itself."""

    host: str
    nproc: int
    rank: int | None
    launch: str
    """Its launch, if there were no other nodes."""
    command: str
    """A mark of the command line."""
    language: int = LANGUAGE


@dataclass(eq=False)
class Node:
    """A node as the leader knows it."""

    link: Link
    arrival: int
    host: str = ""
    nproc: int = 0
    rank: int | None = None
    leads: bool = False
    present: bool = False
    """It has said hello and is not gone."""
    gone: str = ""
    report: Message | None = None

    @property
    def place(self) -> tuple[float, int]:
        """Ranks are given out in this order: as asked for, else the leader first, so that rank 0 stays where it is."""
        if self.rank is not None:
            return self.rank, self.arrival
        return -1 if self.leads else float("inf"), self.arrival


class Leader:
    """Leads a launch over several nodes, in a thread of its own."""

    def __init__(self, nodes: Nodes, judge: RestartPolicy, launch_id: str, command: str, door: socket.socket) -> None:
        from torch._C._distributed_c10d import TCPStore  # now, for it takes seconds in which no sign of life is sent

        self._open_store = lambda: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._options, self._judge, self._launch_id, self._command, self._door = nodes, judge, launch_id, command, door
        self._nodes: list[Node] = []
        self._group: list[Node] = []
        """The nodes of the attempt under way."""
        self._events: queue.Queue[tuple[Node, str, Message]] = queue.Queue()
        self._arrivals = itertools.count()
        self._stopped = False
        self._begun = False
        self._arrived_at = time.monotonic()
        self._thread = threading.Thread(target=self._lead, name="leader", daemon=True)

    def start(self) -> None:
        """Open the door and lead."""
        threading.Thread(target=self._receive, name="door", daemon=True).start()
        self._thread.start()

    def finish(self) -> None:
        """Wait until every node has heard the verdict, but not for long."""
        self._thread.join(_PARTING)

    def _receive(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:  # closed
                return
            self._meet(connection)

    def _meet(self, connection: socket.socket) -> None:
        def arrived(kind: str, content: Message) -> None:
            self._events.put((node, kind, content))

        def ended(how: str, silent: bool) -> None:
            self._events.put((node, "gone", {"how": how, "silent": silent}))

        node = Node(Link(connection, arrived=arrived, ended=ended, silence=_PATIENCE), next(self._arrivals))
        node.link.start()

    def _lead(self) -> None:
        verdict = Decision(None)
        try:
            while verdict.code is None:
                early = self._gather()
                verdict = early or self._judge.verdict(self._attempt(verdict.remedy))
                self._tell("verdict", **verdict.to_json())
            self._part()
        finally:
            self._door.close()
            for node in self._nodes:
                node.link.close()

    def _gather(self) -> Decision | None:
        """Wait for enough nodes; a verdict if that is the end."""
        end = time.monotonic() + self._options.join_timeout
        while not self._enough():
            if self._stopped:
                return Decision(EXIT_PREEMPTED)
            if time.monotonic() > end:
                return self._too_few()
            self._take_event()
        self._group = sorted(self._present, key=lambda node: node.place)[: self._options.most]
        return Decision(EXIT_PREEMPTED) if self._stopped else None

    @property
    def _present(self) -> list[Node]:
        return [node for node in self._nodes if node.present]

    def _enough(self) -> bool:
        count = len(self._present)
        has_waited = self._begun or time.monotonic() - self._arrived_at > LAST_CALL
        return count >= self._options.most or (count >= self._options.least and has_waited)

    def _too_few(self) -> Decision:
        here = ", ".join(node.host for node in self._present)
        came = f"{len(self._present)} of {self._options.least} nodes ({here}) came to {self._options.address}"
        text = f"only {came} within {self._options.join_timeout:g} s; start the same command on every node"
        if self._begun:
            return Decision(EXIT_FAILURE, said=text)
        return Decision(EXIT_USER, Failure(0, EXIT_USER, word=ExitReport(text, EXIT_USER)))

    def _attempt(self, remedy: Sequence[str]) -> AttemptEnd:
        """Have all nodes run the ranks once."""
        self._begun = True
        store = self._open_store()  # a new one for every attempt: nothing of the last one is in it
        sizes = [node.nproc for node in self._group]
        for index, node in enumerate(self._group):
            node.report = None
            first, nodes = sum(sizes[:index]), len(sizes)
            part = NodeAssignment(self._options.host, store.port, self._launch_id, sum(sizes), first, index, nodes)
            node.link.send("start", part=asdict(part), remedy=list(remedy))
        joined: list[Node] = []
        while any(node.present and node.report is None for node in self._group):
            self._take_event()
            if not joined and not self._stopped:
                joined = self._newcomers()
                for node in self._group if joined else ():
                    node.link.send("regroup")
        return self._ended(joined)

    def _newcomers(self) -> list[Node]:
        """Nodes that came after the attempt began and may take part, once they have settled."""
        new = [node for node in self._present if node not in self._group]
        room = self._options.most - len(self._group)
        return new[:room] if new and room > 0 and time.monotonic() - self._arrived_at > _SETTLE else []

    def _ended(self, joined: Sequence[Node]) -> AttemptEnd:
        reports = [node.report for node in self._group if node.report]
        lost = [node for node in self._group if node.report is None]
        remaining = len(self._present)
        return AttemptEnd(
            [Failure.from_json(failure, report["shift"]) for report in reports for failure in report["failures"]],
            self._stopped,
            any(report["at_once"] for report in reports),
            lost=" and ".join(f"{node.host} {node.gone}" for node in lost),
            remaining=_count(remaining) if remaining >= self._options.least else "",
            joined=f"{' and '.join(node.host for node in joined)} joined" if joined else "",
        )

    def _take_event(self) -> None:
        try:
            node, kind, content = self._events.get(timeout=0.1)
        except queue.Empty:
            return
        if kind == "hello":
            self._welcome(node, content)
        elif not node.present:
            return  # a stranger, or one that was refused
        elif kind == "gone":
            self._lose(node, **content)
        elif kind == "stop":
            self._stopped = True
            self._tell("stop", but=node)
        elif kind == "broken":
            self._tell("broken", but=node, **content)
        elif kind == "report":
            node.report = {**content, "shift": time.time() - content["now"]}

    def _welcome(self, node: Node, content: Message) -> None:
        if content.get("language") != LANGUAGE:
            node.link.send("refused", text="the nodes have different versions of samestep; install the same on all")
            return
        try:
            hello = Hello(**content)
        except TypeError:  # no launcher says that
            node.link.close()
            return
        node.host, node.nproc, node.rank = hello.host, hello.nproc, hello.rank
        node.leads = hello.launch == self._launch_id
        twin = next((other for other in self._present if node.rank is not None and other.rank == node.rank), None)
        if hello.command != self._command:
            node.link.send("refused", text=f"{node.host} was given another command; start the same one on every node")
        elif twin is not None:
            node.link.send("refused", text=f"{twin.host} has --node-rank {node.rank} already; give each node its own")
        else:
            node.present = True
            self._nodes.append(node)
            self._arrived_at = time.monotonic()
            node.link.send("welcome")

    def _lose(self, node: Node, how: str, silent: bool) -> None:
        """A node is gone. Its ranks may still save if only its launcher is; but not if it is out of reach."""
        running = node.present and node in self._group and node.report is None
        node.present, node.gone = False, how
        if running:
            self._tell("broken", seconds=0.0 if silent else PEER_SECONDS)

    def _tell(self, kind: str, but: Node | None = None, **content: Any) -> None:
        for node in self._present:
            if node is not but:
                node.link.send(kind, **content)

    def _part(self) -> None:
        """Wait until the nodes have gone, each with the verdict."""
        end = time.monotonic() + _PARTING
        while any(not node.leads for node in self._present) and time.monotonic() < end:
            self._take_event()


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"
