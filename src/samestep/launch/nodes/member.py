"""A node's launcher among several: it comes to the meeting place, runs the ranks it is given, and hears the verdict."""

import hashlib
import json
import queue
import signal
import socket
import time
from dataclasses import asdict

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_PREEMPTED, UserError
from samestep.launch.attempt import Alarm, NodeAssignment
from samestep.launch.failure import Failure, cause
from samestep.launch.node_runner import NodeRunner, say
from samestep.launch.nodes.leader import Hello, Leader
from samestep.launch.nodes.link import Link, Message
from samestep.launch.nodes.options import Nodes
from samestep.launch.restart_policy import Decision, RestartPolicy
from samestep.launch.stop_requests import StopRequests

_WELCOME = 10.0
"""Seconds in which a leader answers; whoever does not is none."""
_SPEAK = 2.0
"""Seconds of waiting for other nodes after which the user is told."""


def take_part(nodes: Nodes, station: NodeRunner, judge: RestartPolicy, launch_id: str) -> int:
    """Run this node's part of the launch, and lead it if that falls to this node; returns the exit code."""
    nodes.resolve()
    command = hashlib.sha256(json.dumps(list(station.words)).encode()).hexdigest()
    door = nodes.open_door()
    member = Member(nodes, station, launch_id, command)
    if door is None:
        return member.run(nodes.host)
    leader = Leader(nodes, judge, launch_id, command, door)
    leader.start()
    try:
        return member.run("localhost")
    finally:
        leader.finish()


class _NodeAlarm(Alarm):
    """An alarm that rings on all nodes."""

    def __init__(self, member: "Member") -> None:
        super().__init__()
        self._member = member
        self._told = float("inf")

    def broken(self, seconds: float) -> None:
        self.ring(seconds)
        if seconds < self._told:
            self._told = seconds
            self._member.send("broken", seconds=seconds)

    def look(self, stop: StopRequests) -> None:
        self._member.look()


class Member:
    """This node's launcher. What the leader says arrives in a thread of the link, and is done in the main one."""

    def __init__(self, nodes: Nodes, station: NodeRunner, launch_id: str, command: str) -> None:
        self._nodes, self._station, self._stop = nodes, station, station.stop
        self._launch_id, self._command = launch_id, command
        self._link: Link | None = None
        self._orders: queue.Queue[tuple[str, Message]] = queue.Queue()
        self._alarm: _NodeAlarm | None = None
        self._stop_wanted = self._stop_told = False
        self._failures: list[Failure] | None = None
        """How the last attempt ended here; None: it was judged, or there was none."""

    def run(self, host: str) -> int:
        """Do what the leader at `host` says, to the end; returns the exit code."""
        connection = self._connect(host)
        if connection is None:
            return EXIT_PREEMPTED
        self._link = Link(connection, arrived=self._arrived, ended=self._ended)
        self._link.start()
        try:
            self._greet()
            code = self._obey()
            while code is None:
                code = self._obey()
            return code
        finally:
            self._link.close()

    def send(self, kind: str, **content: object) -> None:
        """Tell the leader."""
        assert self._link is not None
        self._link.send(kind, **content)

    def look(self) -> None:
        """Pass on requests to stop: those that came to other nodes, and those that came here."""
        if self._stop_wanted:
            self._stop.request(signal.SIGTERM)
        elif self._stop.reason is not None and not self._stop_told:
            self._stop_told = True
            self.send("stop")

    def _connect(self, host: str) -> socket.socket | None:
        """Come to the meeting place, which may open later; None: a request to stop came first."""
        end = time.monotonic() + self._nodes.join_timeout
        while self._stop.reason is None:
            try:
                return socket.create_connection((host, self._nodes.port), timeout=5.0)
            except OSError as error:
                if time.monotonic() > end:
                    raise UserError(
                        f"the first node was not found at {self._nodes.address} within {self._nodes.join_timeout:g} s "
                        f"({error.strerror or error}); start the same command there, and check that no firewall is "
                        "in between"
                    ) from None
            time.sleep(0.2)
        return None

    def _greet(self) -> None:
        name, count, rank = socket.gethostname(), self._station.nproc, self._nodes.rank
        self.send("hello", **asdict(Hello(name, count, rank, self._launch_id, self._command)))
        try:
            kind, content = self._orders.get(timeout=_WELCOME)
        except queue.Empty:
            kind, content = "gone", {}
        if kind == "refused":
            raise UserError(content["text"])
        if kind != "welcome":
            raise UserError(
                f"what answers at {self._nodes.address} is no launch of samestep; choose another port with "
                f"--rdzv {self._nodes.host}:PORT, the same on every node"
            )

    def _obey(self) -> int | None:
        """Carry out the next order; the exit code when that was the last."""
        kind, content = self._next_order()
        if kind == "start":
            part = NodeAssignment(**content["part"])
            if part.first_rank > 0:
                say(f"{_ranks(part, self._station.nproc)} of {part.world_size} here; rank 0 shows the progress")
            assert self._alarm is not None
            self._failures = self._station.attempt(part, content["remedy"], self._alarm)
            told = [failure.to_json() for failure in self._failures]
            self.send("report", failures=told, at_once=self._stop.at_once, now=time.time())
        elif kind == "verdict":
            self._failures = None
            verdict = Decision.from_json(content)
            self._station.show(verdict)
            return verdict.code
        elif kind == "gone":
            return self._abandoned(content["how"])
        return None

    def _next_order(self) -> tuple[str, Message]:
        speak = time.monotonic() + _SPEAK
        while True:
            self.look()
            try:
                return self._orders.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > speak and self._failures is None:
                    speak = float("inf")
                    say(f"waiting for other nodes at {self._nodes.address}")

    def _arrived(self, kind: str, content: Message) -> None:
        if kind == "stop":
            self._stop_wanted = True
        elif kind in ("broken", "regroup"):
            if self._alarm is not None:
                self._alarm.ring(content.get("seconds", self._stop.grace), ask=kind == "regroup")
        else:
            if kind == "start":  # here, so that whatever is said after it is about this attempt
                self._alarm = _NodeAlarm(self)
            self._orders.put((kind, content))

    def _ended(self, how: str, silent: bool) -> None:
        """The leader is gone. Its ranks may still save if only its launcher is; but not if it is out of reach."""
        if self._alarm is not None:
            self._alarm.ring(0.0 if silent else self._stop.grace, ask=True)
        self._orders.put(("gone", {"how": how}))

    def _abandoned(self, how: str) -> int:
        """The exit code of a node whose leader is gone: that of its own ranks, as far as it says something."""
        if self._failures == []:
            return EXIT_DONE
        say(f"the first node, {self._nodes.address}, {how}; the run can be resumed with --resume")
        stopped = self._failures is not None and cause(self._failures).is_stop
        return EXIT_PREEMPTED if stopped or self._stop.reason is not None else EXIT_FAILURE


def _ranks(part: NodeAssignment, count: int) -> str:
    """The ranks of this node, for a reader."""
    first, last = part.first_rank, part.first_rank + count - 1
    return f"rank {first}" if count == 1 else f"ranks {first} {'and' if count == 2 else 'to'} {last}"
