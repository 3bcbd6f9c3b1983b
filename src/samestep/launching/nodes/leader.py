"""The first node's launcher leads: it waits for the nodes, assigns the ranks, and decides what follows an attempt.

All decisions are made here, one after the other, in one thread; the nodes carry them out. If this node is lost, the
others end by themselves: the run resumes from its last checkpoint when it is started again.
"""

import itertools
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samestep.core.errors import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_USER
from samestep.core.exit_report import ExitReport
from samestep.core.handshake import Lines, Listener
from samestep.core.store_server import serve_store
from samestep.launching.assignment import PEER_SECONDS, NodeAssignment
from samestep.launching.failure import Failure
from samestep.launching.nodes.link import TIMEOUT, Link
from samestep.launching.nodes.messages import (
    Broken,
    Hello,
    Message,
    OtherVersion,
    Refused,
    Regroup,
    Report,
    StartAttempt,
    StopAttempt,
    Verdict,
    Welcome,
)
from samestep.launching.nodes.options import NodeOptions
from samestep.launching.nodes.ssh import RemoteLaunchers
from samestep.launching.restart_policy import AttemptEnd, Decision, RestartPolicy

MORE_NODES_WAIT = 5.0
"""Seconds to wait for more nodes at the start, when there are enough but not yet all."""
_NEW_NODE_WAIT = 2.0
"""Seconds that a new node waits for others before the ranks are stopped for it."""
_NODE_TIMEOUT = 1.2 * TIMEOUT
"""Longer than that of the nodes: a node that is cut off ends its ranks before it counts as lost here, so the same run
never has two sets of ranks."""
_END_TIMEOUT = 5.0


@dataclass(frozen=True)
class _Gone:
    """A connection ended."""

    how: str
    silent: bool


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
    """It was admitted and is not lost."""
    gone: str = ""
    report: Report | None = None
    """How its ranks ended, in the time of the clock here."""

    @property
    def order(self) -> tuple[float, int]:
        """Ranks are assigned in this order: by node rank, else the leader first, so that rank 0 stays where it is."""
        if self.rank is not None:
            return self.rank, self.arrival
        return -1 if self.leads else float("inf"), self.arrival


class Leader:
    """Leads a launch over several nodes, in a thread of its own."""

    def __init__(
        self,
        options: NodeOptions,
        policy: RestartPolicy,
        launch_id: str,
        command: str,
        server: socket.socket,
        key: bytes,
        remote: RemoteLaunchers,
    ) -> None:
        self._options, self._policy, self._launch_id, self._command = options, policy, launch_id, command
        self._listener, self._remote = Listener(server, key, self._add_link), remote
        self._nodes: list[Node] = []
        self._group: list[Node] = []
        """The nodes of the attempt under way."""
        self._events: queue.Queue[tuple[Node, Message | _Gone]] = queue.Queue()
        self._arrivals = itertools.count()
        self._stopped = False
        self._begun = False
        self._arrived_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Accept connections and lead."""
        self._listener.start()
        self._thread.start()

    def finish(self) -> None:
        """Wait until every node has the decision, but not for long."""
        self._thread.join(_END_TIMEOUT)

    def _add_link(self, connection: socket.socket, lines: Lines) -> None:
        def on_message(message: Message) -> None:
            self._events.put((node, message))

        def on_end(how: str, silent: bool) -> None:
            self._events.put((node, _Gone(how, silent)))

        link = Link(connection, lines, on_message=on_message, on_end=on_end, timeout=_NODE_TIMEOUT)
        node = Node(link, next(self._arrivals))
        link.start()

    def _run(self) -> None:
        decision = Decision(None)
        try:
            while decision.code is None:
                early = self._wait_for_nodes()
                decision = early or self._policy.decide(self._attempt(decision.batch_size))
                self._broadcast(Verdict(decision))
            self._wait_until_nodes_left()
        finally:
            self._listener.close()
            for node in self._nodes:
                node.link.close()

    def _wait_for_nodes(self) -> Decision | None:
        """Wait for enough nodes; returns a decision if the launch ends here."""
        end = time.monotonic() + self._options.join_timeout
        while not self._enough():
            if self._stopped:
                return Decision(EXIT_PREEMPTED)
            self._keep_hosts_running()
            cannot_begin = not self._begun and self._remote.problem and any(node.leads for node in self._present)
            if time.monotonic() > end or cannot_begin:
                return self._too_few()
            self._handle_event()
        self._keep_hosts_running()
        self._group = sorted(self._present, key=lambda node: node.order)[: self._options.most]
        return Decision(EXIT_PREEMPTED) if self._stopped else None

    def _keep_hosts_running(self) -> None:
        self._remote.keep_running({node.rank for node in self._present}, again=self._begun)

    @property
    def _present(self) -> list[Node]:
        return [node for node in self._nodes if node.present]

    def _enough(self) -> bool:
        count = len(self._present)
        has_waited = self._begun or time.monotonic() - self._arrived_at > MORE_NODES_WAIT
        return count >= self._options.most or (count >= self._options.least and has_waited)

    def _too_few(self) -> Decision:
        here = ", ".join(node.host for node in self._present)
        came = f"{len(self._present)} of {self._options.least} nodes ({here}) came to {self._options.address}"
        text = f"only {came} within {self._options.join_timeout:g} s; start the same command on every node"
        text = self._remote.problem or text
        if self._begun:
            return Decision(EXIT_FAILURE, message=text)
        return Decision(EXIT_USER, Failure(0, EXIT_USER, report=ExitReport(text, EXIT_USER)))

    def _attempt(self, batch_size: int | None) -> AttemptEnd:
        """Have all nodes run their ranks once."""
        self._begun = True
        store = serve_store(only_here=False)  # a new one for every attempt: nothing of the last one is in it
        sizes = [node.nproc for node in self._group]
        for index, node in enumerate(self._group):
            node.report = None
            first, nodes = sum(sizes[:index]), len(sizes)
            assignment = NodeAssignment(
                self._options.host, store.port, self._launch_id, sum(sizes), first, index, nodes
            )
            node.link.send(StartAttempt(assignment, batch_size))
        joined: list[Node] = []
        while any(node.present and node.report is None for node in self._group):
            self._handle_event()
            if not joined and not self._stopped:
                joined = self._new_nodes()
                for node in self._group if joined else ():
                    node.link.send(Regroup())
        return self._ended(joined)

    def _new_nodes(self) -> list[Node]:
        """Nodes that came after the attempt began and may join, once no other came for a while."""
        new = [node for node in self._present if node not in self._group]
        free = self._options.most - len(self._group)
        return new[:free] if new and free > 0 and time.monotonic() - self._arrived_at > _NEW_NODE_WAIT else []

    def _ended(self, joined: Sequence[Node]) -> AttemptEnd:
        reports = [node.report for node in self._group if node.report]
        lost = [node for node in self._group if node.report is None]
        remaining = len(self._present)
        return AttemptEnd(
            [failure for report in reports for failure in report.failures],
            self._stopped,
            any(report.at_once for report in reports),
            lost=" and ".join(f"{node.host} {node.gone}" for node in lost),
            remaining=_count(remaining) if remaining >= self._options.least else "",
            joined=f"{' and '.join(node.host for node in joined)} joined" if joined else "",
        )

    def _handle_event(self) -> None:
        try:
            node, message = self._events.get(timeout=0.1)
        except queue.Empty:
            return
        if isinstance(message, Hello | OtherVersion) and not node.present:
            self._admit(node, message)
        elif not node.present:
            return  # one that was refused
        elif isinstance(message, _Gone):
            self._lose(node, message)
        elif isinstance(message, StopAttempt):
            self._stopped = True
            self._broadcast(message, but=node)
        elif isinstance(message, Broken):
            self._broadcast(message, but=node)
        elif isinstance(message, Report):
            shift = time.time() - message.now
            node.report = replace(message, failures=[failure.shifted(shift) for failure in message.failures])

    def _admit(self, node: Node, hello: Hello | OtherVersion) -> None:
        if isinstance(hello, OtherVersion):
            node.link.send(Refused("the nodes have different versions of samestep; install the same on all"))
            return
        node.host, node.nproc, node.rank = hello.host, hello.nproc, hello.rank
        node.leads = hello.launch == self._launch_id
        same_rank = next((other for other in self._present if node.rank is not None and other.rank == node.rank), None)
        if hello.command != self._command:
            node.link.send(Refused(f"{node.host} was given another command; start the same one on every node"))
        elif same_rank is not None:
            node.link.send(Refused(f"{same_rank.host} has --node-rank {node.rank} already; give each node its own"))
        else:
            node.present = True
            self._nodes.append(node)
            self._arrived_at = time.monotonic()
            node.link.send(Welcome())

    def _lose(self, node: Node, gone: _Gone) -> None:
        """A node is gone. If only its launcher is, its ranks may still save; if it is out of reach, they may not."""
        running = node in self._group and node.report is None
        node.present, node.gone = False, gone.how
        if running:
            self._broadcast(Broken(0.0 if gone.silent else PEER_SECONDS))

    def _broadcast(self, message: Message, but: Node | None = None) -> None:
        for node in self._present:
            if node is not but:
                node.link.send(message)

    def _wait_until_nodes_left(self) -> None:
        """Each node closes its connection when it has the decision."""
        end = time.monotonic() + _END_TIMEOUT
        while any(not node.leads for node in self._present) and time.monotonic() < end:
            self._handle_event()


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"
