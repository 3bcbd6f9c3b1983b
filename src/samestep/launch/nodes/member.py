"""The launcher of one node among several: it connects to the leader and runs its ranks as the leader says."""

import hashlib
import json
import queue
import signal
import socket
import time
from dataclasses import asdict

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_PREEMPTED, UserError
from samestep.launch.assignment import AttemptDeadline, NodeAssignment
from samestep.launch.failure import Failure, cause
from samestep.launch.node_runner import NodeRunner, notify
from samestep.launch.nodes.leader import Hello, Leader
from samestep.launch.nodes.link import Content, Link
from samestep.launch.nodes.options import NodeOptions
from samestep.launch.restart_policy import Decision, RestartPolicy
from samestep.launch.stop_requests import StopRequests

_WELCOME_TIMEOUT = 10.0
"""Seconds in which a leader answers; another program may listen on the port."""
_NOTICE_AFTER = 2.0
"""Seconds of waiting for other nodes after which a message is printed."""


def run_node(options: NodeOptions, runner: NodeRunner, policy: RestartPolicy, launch_id: str) -> int:
    """Run this node's ranks of a launch, and lead the launch if this is the first node; returns the exit code."""
    options.check_host()
    command = hashlib.sha256(json.dumps(list(runner.args)).encode()).hexdigest()
    listener = options.open_port()
    member = Member(options, runner, launch_id, command)
    if listener is None:
        return member.run(options.host)
    leader = Leader(options, policy, launch_id, command, listener)
    leader.start()
    try:
        return member.run("localhost")
    finally:
        leader.finish()


class _SharedDeadline(AttemptDeadline):
    """A deadline for the ranks of all nodes."""

    def __init__(self, member: "Member") -> None:
        super().__init__()
        self._member = member
        self._sent = float("inf")

    def rank_failed(self, seconds: float) -> None:
        self.end_within(seconds)
        if seconds < self._sent:
            self._sent = seconds
            self._member.send("broken", seconds=seconds)

    def poll(self, stop: StopRequests) -> None:
        self._member.pass_on_stop()


class Member:
    """This node's launcher. Messages of the leader arrive in the thread of the link; the main one carries them out."""

    def __init__(self, options: NodeOptions, runner: NodeRunner, launch_id: str, command: str) -> None:
        self._options, self._runner, self._stop = options, runner, runner.stop
        self._launch_id, self._command = launch_id, command
        self._link: Link | None = None
        self._messages: queue.Queue[tuple[str, Content]] = queue.Queue()
        self._deadline: _SharedDeadline | None = None
        self._stop_received = self._stop_sent = False
        self._failures: list[Failure] | None = None
        """How the last attempt ended here; None: the leader has decided about it, or there was none."""

    def run(self, host: str) -> int:
        """Carry out what the leader at `host` sends, to the end; returns the exit code."""
        connection = self._connect(host)
        if connection is None:
            return EXIT_PREEMPTED
        self._link = Link(connection, on_message=self._on_message, on_end=self._on_end)
        self._link.start()
        try:
            self._join()
            code = self._handle_message()
            while code is None:
                code = self._handle_message()
            return code
        finally:
            self._link.close()

    def send(self, kind: str, **content: object) -> None:
        """Send a message to the leader."""
        assert self._link is not None
        self._link.send(kind, **content)

    def pass_on_stop(self) -> None:
        """Pass on requests to stop: those that came to other nodes, and those that came here."""
        if self._stop_received:
            self._stop.request(signal.SIGTERM)
        elif self._stop.reason is not None and not self._stop_sent:
            self._stop_sent = True
            self.send("stop")

    def _connect(self, host: str) -> socket.socket | None:
        """Connect to the leader, whose port may open later; None: a request to stop came first."""
        end = time.monotonic() + self._options.join_timeout
        while self._stop.reason is None:
            try:
                return socket.create_connection((host, self._options.port), timeout=5.0)
            except OSError as error:
                if time.monotonic() > end:
                    options = self._options
                    raise UserError(
                        f"the first node was not found at {options.address} within {options.join_timeout:g} s "
                        f"({error.strerror or error}); start the same command there, and check that no firewall is "
                        "in between"
                    ) from None
            time.sleep(0.2)
        return None

    def _join(self) -> None:
        """Introduce this node, and wait to be admitted."""
        name, count, rank = socket.gethostname(), self._runner.nproc, self._options.rank
        self.send("hello", **asdict(Hello(name, count, rank, self._launch_id, self._command)))
        try:
            kind, content = self._messages.get(timeout=_WELCOME_TIMEOUT)
        except queue.Empty:
            kind, content = "gone", {}
        if kind == "refused":
            raise UserError(content["text"])
        if kind != "welcome":
            raise UserError(
                f"what answers at {self._options.address} is not a samestep launcher; choose another port with "
                f"--rdzv {self._options.host}:PORT, the same on every node"
            )

    def _handle_message(self) -> int | None:
        """Carry out the next message; returns the exit code when that was the last."""
        kind, content = self._next_message()
        if kind == "start":
            assignment = NodeAssignment(**content["part"])
            if assignment.first_rank > 0:
                ranks = _ranks(assignment, self._runner.nproc)
                notify(f"{ranks} of {assignment.world_size} here; rank 0 shows the progress")
            assert self._deadline is not None
            self._failures = self._runner.attempt(assignment, content["remedy"], self._deadline)
            failures = [failure.to_json() for failure in self._failures]
            self.send("report", failures=failures, at_once=self._stop.at_once, now=time.time())
        elif kind == "verdict":
            self._failures = None
            decision = Decision.from_json(content)
            self._runner.show(decision)
            return decision.code
        elif kind == "gone":
            return self._without_leader(content["how"])
        return None

    def _next_message(self) -> tuple[str, Content]:
        notice_at = time.monotonic() + _NOTICE_AFTER
        while True:
            self.pass_on_stop()
            try:
                return self._messages.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > notice_at and self._failures is None:
                    notice_at = float("inf")
                    notify(f"waiting for other nodes at {self._options.address}")

    def _on_message(self, kind: str, content: Content) -> None:
        if kind == "stop":
            self._stop_received = True
        elif kind in ("broken", "regroup"):
            if self._deadline is not None:
                self._deadline.end_within(content.get("seconds", self._stop.grace), ask=kind == "regroup")
        else:
            if kind == "start":  # here, so that later messages are about this attempt
                self._deadline = _SharedDeadline(self)
            self._messages.put((kind, content))

    def _on_end(self, how: str, silent: bool) -> None:
        """The leader is gone. If only its launcher is, ranks may still save; if it is out of reach, they may not."""
        if self._deadline is not None:
            self._deadline.end_within(0.0 if silent else self._stop.grace, ask=True)
        self._messages.put(("gone", {"how": how}))

    def _without_leader(self, how: str) -> int:
        """The exit code of a node whose leader is gone, as far as it follows from its own ranks."""
        if self._failures == []:
            return EXIT_DONE
        notify(f"the first node, {self._options.address}, {how}; the run can be resumed with --resume")
        stopped = self._failures is not None and cause(self._failures).is_stop
        return EXIT_PREEMPTED if stopped or self._stop.reason is not None else EXIT_FAILURE


def _ranks(assignment: NodeAssignment, count: int) -> str:
    """The ranks of this node, as text."""
    first, last = assignment.first_rank, assignment.first_rank + count - 1
    return f"rank {first}" if count == 1 else f"ranks {first} {'and' if count == 2 else 'to'} {last}"
