"""The launcher of one node among several: it connects to the leader and runs its ranks as the leader says."""

import hashlib
import json
import os
import queue
import signal
import socket
import time
from dataclasses import dataclass, replace

from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_PREEMPTED, UserError
from samestep.core.handshake import Lines, NotTrusted, call
from samestep.core.secret import derive_key, find_secret
from samestep.launching.assignment import AttemptDeadline, NodeAssignment
from samestep.launching.failure import Failure, cause
from samestep.launching.node_runner import NodeRunner, notify
from samestep.launching.nodes.leader import Leader
from samestep.launching.nodes.link import Link
from samestep.launching.nodes.messages import (
    Broken,
    Hello,
    Message,
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
from samestep.launching.restart_policy import RestartPolicy
from samestep.launching.stop_requests import StopRequests

_WELCOME_TIMEOUT = 10.0
"""Seconds in which a leader answers; another program may listen on the port."""
_NOTICE_AFTER = 2.0
"""Seconds of waiting for other nodes after which a message is printed."""


def run_node(options: NodeOptions, runner: NodeRunner, policy: RestartPolicy, launch_id: str) -> int:
    """Run this node's ranks of a launch, and lead the launch if this is the first node; returns the exit code."""
    options.check_host()
    command = hashlib.sha256(json.dumps(list(runner.args)).encode()).hexdigest()
    server = options.open_port()
    if options.hosts:
        assert server is not None
        options = replace(options, port=server.getsockname()[1])
    runner.shows_all, runner.is_silent = bool(options.hosts), options.by_ssh
    key = derive_key(find_secret(os.environ), "nodes", options.address)
    member = Member(options, runner, launch_id, command, key)
    if server is None:
        return member.run(options.host)
    remote = RemoteLaunchers(options, runner.args, runner.stop.grace)
    leader = Leader(options, policy, launch_id, command, server, key, remote)
    leader.start()
    try:
        return member.run("localhost")
    finally:
        leader.finish()
        remote.close()


@dataclass(frozen=True)
class _Gone:
    """The connection to the leader ended."""

    how: str


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
            self._member.send(Broken(seconds))

    def poll(self, stop: StopRequests) -> None:
        self._member.pass_on_stop()


class Member:
    """This node's launcher. Messages of the leader arrive in the thread of the link; the main one carries them out."""

    def __init__(self, options: NodeOptions, runner: NodeRunner, launch_id: str, command: str, key: bytes) -> None:
        self._options, self._runner, self._stop = options, runner, runner.stop
        self._launch_id, self._command, self._key = launch_id, command, key
        self._link: Link | None = None
        self._messages: queue.Queue[Message | _Gone] = queue.Queue()
        self._deadline: _SharedDeadline | None = None
        self._first_answer: float | None = None
        """When something accepted a connection for the first time."""
        self._stop_received = self._stop_sent = False
        self._failures: list[Failure] | None = None
        """How the last attempt ended here; None: the leader has decided about it, or there was none."""

    def run(self, host: str) -> int:
        """Carry out what the leader at `host` sends, to the end; returns the exit code."""
        found = self._connect(host)
        if found is None:
            return EXIT_PREEMPTED
        self._link = Link(*found, on_message=self._on_message, on_end=self._on_end)
        self._link.start()
        try:
            self._join()
            code = self._handle_message()
            while code is None:
                code = self._handle_message()
            return code
        finally:
            self._link.close()

    def send(self, message: Message) -> None:
        assert self._link is not None
        self._link.send(message)

    def pass_on_stop(self) -> None:
        """Pass on requests to stop: those that came to other nodes, and those that came here."""
        if self._stop_received:
            self._stop.request(signal.SIGTERM)
        elif self._stop.reason is not None and not self._stop_sent:
            self._stop_sent = True
            self.send(StopAttempt())

    def _connect(self, host: str) -> tuple[socket.socket, Lines] | None:
        """Connect to the leader, whose port may open later; None: a request to stop came first."""
        end = time.monotonic() + self._options.join_timeout
        while self._stop.reason is None:
            try:
                connection = socket.create_connection((host, self._options.port), timeout=5.0)
            except OSError as error:
                self._first_answer = None  # what answered before is gone
                if time.monotonic() > end:
                    options = self._options
                    raise UserError(
                        f"the first node was not found at {options.address} within {options.join_timeout:g} s "
                        f"({error.strerror or error}); start the same command there, and check that no firewall is "
                        "in between"
                    ) from None
                time.sleep(0.2)
            else:
                lines = self._recognise(connection)
                if lines is not None:
                    return connection, lines
        return None

    def _recognise(self, connection: socket.socket) -> Lines | None:
        """Have the leader prove that it is one, and prove the same to it; None: it had no time, so try again."""
        if self._first_answer is None:
            self._first_answer = time.monotonic()
        left = self._first_answer + _WELCOME_TIMEOUT - time.monotonic()
        try:
            return call(connection, self._key, timeout=left)
        except NotTrusted:
            connection.close()
            raise UserError(
                f"what answers at {self._options.address} does not know the secret of this launch: write --rdzv in the "
                "same way on every node and, if they do not share the home directory, set SAMESTEP_SECRET to the same "
                "random text on all of them or start them with --hosts"
            ) from None
        except OSError:
            connection.close()
            if time.monotonic() < self._first_answer + _WELCOME_TIMEOUT:
                time.sleep(0.2)
                return None
            raise self._no_launcher() from None

    def _no_launcher(self) -> UserError:
        return UserError(
            f"what answers at {self._options.address} is not a samestep launcher of this version; install the same "
            f"version on every node, or choose another port with --rdzv {self._options.host}:PORT, the same on all"
        )

    def _join(self) -> None:
        """Introduce this node, and wait to be admitted."""
        name, count, rank = socket.gethostname(), self._runner.nproc, self._options.rank
        self.send(Hello(name, count, rank, self._launch_id, self._command))
        try:
            message = self._messages.get(timeout=_WELCOME_TIMEOUT)
        except queue.Empty:
            raise self._no_launcher() from None
        if isinstance(message, Refused):
            raise UserError(message.text)
        if not isinstance(message, Welcome):
            raise self._no_launcher()

    def _handle_message(self) -> int | None:
        """Carry out the next message; returns the exit code when that was the last."""
        message = self._next_message()
        if isinstance(message, StartAttempt):
            self._run_attempt(message)
        elif isinstance(message, Verdict):
            self._failures = None
            self._runner.show(message.decision)
            return message.decision.code
        elif isinstance(message, _Gone):
            return self._without_leader(message.how)
        return None

    def _run_attempt(self, start: StartAttempt) -> None:
        assignment = start.assignment
        if assignment.first_rank > 0 and not self._runner.is_silent:
            ranks = _ranks(assignment, self._runner.nproc)
            notify(f"{ranks} of {assignment.world_size} here; rank 0 shows the progress")
        assert self._deadline is not None
        self._failures = self._runner.attempt(assignment, start.batch_size, self._deadline)
        self.send(Report(self._failures, self._stop.at_once, time.time()))

    def _next_message(self) -> Message | _Gone:
        notice_at = time.monotonic() + _NOTICE_AFTER
        while True:
            self.pass_on_stop()
            try:
                return self._messages.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > notice_at and self._failures is None and not self._runner.is_silent:
                    notice_at = float("inf")
                    notify(f"waiting for other nodes at {self._options.address}")

    def _on_message(self, message: Message) -> None:
        if isinstance(message, StopAttempt):
            self._stop_received = True
        elif isinstance(message, Broken | Regroup):
            seconds = message.seconds if isinstance(message, Broken) else self._stop.grace
            if self._deadline is not None:
                self._deadline.end_within(seconds, ask=isinstance(message, Regroup))
        else:
            if isinstance(message, StartAttempt):  # here, so that later messages are about this attempt
                self._deadline = _SharedDeadline(self)
            self._messages.put(message)

    def _on_end(self, how: str, silent: bool) -> None:
        """The leader is gone. If only its launcher is, ranks may still save; if it is out of reach, they may not."""
        if self._deadline is not None:
            self._deadline.end_within(0.0 if silent else self._stop.grace, ask=True)
        self._messages.put(_Gone(how))

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
