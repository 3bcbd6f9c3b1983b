"""The connection between launchers: lines of who does not know the key, silence and nonsense end it with a sentence."""

import json
import socket
from dataclasses import asdict, dataclass, field

import pytest

from launching.test_launcher import wait_for
from samestep.core.exit_report import ExitReport, parse_exit_report
from samestep.core.handshake import Lines
from samestep.launching.assignment import NodeAssignment
from samestep.launching.failure import Failure
from samestep.launching.nodes.link import Link
from samestep.launching.nodes.messages import (
    PROTOCOL_VERSION,
    Broken,
    Hello,
    Message,
    OtherVersion,
    Report,
    StartAttempt,
    StopAttempt,
    Verdict,
    parse,
)
from samestep.launching.restart_policy import Decision

KEY = b"k" * 32
FAILURE = Failure(1, 77, 5.0, ExitReport("no room", 77, 1, "there", time=4.0, retry_batch_size=2, retry_text="with 2"))
MESSAGES = [
    Hello("a", 2, None, "id", "hash"),
    StartAttempt(NodeAssignment("a", 1, "id", 4, 2, 1, 2), 8),
    Verdict(Decision(None, FAILURE, "again", 2)),
    Report([FAILURE], at_once=False, now=9.0),
    Broken(7.0),
    StopAttempt(),
]


@dataclass
class Pair:
    """A link, and the other end of its connection, to write anything to."""

    messages: list[Message] = field(default_factory=list)
    ends: list[tuple[str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.lines = Lines(KEY, b"caller", b"listener")
        lines = Lines(KEY, b"listener", b"caller")
        ended = lambda *end: self.ends.append(end)  # noqa: E731
        self.link = Link(ours, lines, on_message=self.messages.append, on_end=ended, timeout=1.0)
        self.link.start()

    def send(self, content: object) -> None:
        self.socket.sendall(self.lines.seal(json.dumps(content).encode()))

    def end(self) -> tuple[str, bool]:
        wait_for(lambda: self.ends, 5)
        self.socket.close()
        (end,) = self.ends
        return end


def test_messages_arrive_as_they_were_sent() -> None:
    pair, received = Pair(), []
    there = Link(pair.socket, pair.lines, on_message=received.append, on_end=lambda *_: None)
    there.start()
    for message in MESSAGES:
        pair.link.send(message)
        there.send(message)
    wait_for(lambda: len(received) == len(pair.messages) == len(MESSAGES), 5)
    assert received == pair.messages == MESSAGES
    there.close()


def test_silence_ends_it() -> None:
    assert Pair().end() == ("has not answered for 1 s", True)


def test_bytes_that_are_no_line_are_silence() -> None:
    pair = Pair()

    def drip() -> bool:
        if not pair.ends:
            pair.socket.sendall(b"x")
        return bool(pair.ends)

    wait_for(drip, 60)
    assert pair.end()[1]


def test_a_line_without_a_proof_ends_it_and_is_not_obeyed() -> None:
    pair = Pair()
    pair.socket.sendall(b'["StopAttempt", {}]\n')
    assert pair.end() == ("broke the connection (a line that the other side did not send)", False)
    assert pair.messages == []


def test_a_line_that_is_sent_twice_ends_it() -> None:
    pair = Pair()
    line = pair.lines.seal(b'["StopAttempt", {}]')
    pair.socket.sendall(line + line)
    assert not pair.end()[1]
    assert pair.messages == [StopAttempt()]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (1, "not a message"),
        ([["StopAttempt"], {}], "an unknown message"),
        (["Quit", {}], "an unknown message"),
        (["Broken", {"seconds": "7"}], "Broken.seconds cannot be str"),
        (
            ["StartAttempt", {"assignment": asdict(MESSAGES[1])["assignment"], "batch_size": "--out=x"}],
            "StartAttempt.batch_size",
        ),
        (["StartAttempt", {"assignment": None, "batch_size": None}], "NodeAssignment must have named fields"),
        (["Verdict", {"decision": {"code": 0, "batch_size": ["--out=x"]}}], "Decision.batch_size cannot be list"),
        (["Report", {"failures": [{"rank": 0}], "at_once": False, "now": 0}], "Failure has no code"),
        (["Hello", {"language": PROTOCOL_VERSION}], "Hello has no command"),
        (["Hello", asdict(MESSAGES[0]) | {"nproc": 0}], "a node without ranks"),
    ],
)
def test_messages_of_the_wrong_shape_end_it_with_a_sentence(content: object, problem: str) -> None:
    pair = Pair()
    pair.send(content)
    how, silent = pair.end()
    assert how.startswith(f"broke the connection ({problem}")
    assert not silent
    assert pair.messages == []


def test_the_hello_of_another_version_is_understood() -> None:
    assert parse("Hello", {"language": PROTOCOL_VERSION + 1, "something": "new"}) == OtherVersion()


def test_the_exit_report_of_a_rank_cannot_name_words_for_a_command_line() -> None:
    good = asdict(FAILURE.report) if FAILURE.report else {}
    assert parse_exit_report(good) == FAILURE.report
    assert parse_exit_report(good | {"retry_batch_size": "2 --out=/tmp"}) is None
    old = parse_exit_report(good | {"retry_batch_size": None, "remedy": ["--out=/tmp"]})
    assert old is not None
    assert "--out" not in str(old)
