"""A judge over HTTP, against a small server on loopback that answers well, badly, late or not at all."""

import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from chat_server import ChatServer, completion

from samestep.core.errors import UserError
from samestep.recipes.gan.endpoint import LARGEST, LONGEST_PAUSE, Endpoint, is_url, key_from

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    made = ChatServer()
    yield made
    made.close()


def asked(server: ChatServer, replies: Sequence[Any], **changes: Any) -> tuple[str, list[float]]:
    """The answer to "hello" after these replies, and the pauses before it."""
    server.replies = list(replies)
    pauses: list[float] = []
    return Endpoint(server.url, "m", sleep=pauses.append, **changes)("hello"), pauses


def test_an_answer(server: ChatServer) -> None:
    text, pauses = asked(server, [(200, completion("so \\boxed{1}"))], key="secret")
    assert text == "so \\boxed{1}"
    assert pauses == []
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    message = [{"role": "user", "content": "hello"}]
    assert body == {"model": "m", "messages": message, "max_tokens": 512, "temperature": 0.0}


def test_what_is_left_to_the_server_is_not_sent(server: ChatServer) -> None:
    asked(server, [(200, completion("x"))], answer_tokens=None, temperature=None)
    ((_, headers, body),) = server.requests
    assert set(body) == {"model", "messages"}
    assert "Authorization" not in headers


def test_a_full_address_is_used_as_it_is(server: ChatServer) -> None:
    server.replies = [(200, completion("x"))]
    assert Endpoint(server.url + "/chat/completions/", "m")("hello") == "x"
    assert server.requests[0][0] == "/v1/chat/completions"


def test_no_text_is_an_empty_answer(server: ChatServer) -> None:
    assert asked(server, [(200, completion(None))])[0] == ""


BUSY = (429, b'{"error": {"message": "slow down"}}', {"Retry-After": "7"})
BROKEN = (500, b"oops")
GARBAGE = (200, b"<html>hello</html>")


def test_failures_that_pass_are_tried_again(server: ChatServer) -> None:
    replies = [BUSY, BROKEN, GARBAGE, (200, b'{"choices": []}'), (200, completion("well"))]
    text, pauses = asked(server, replies)
    assert text == "well"
    assert pauses == [7.0, 1.0, 2.0, 4.0]


def test_a_server_cannot_ask_for_a_pause_without_end(server: ChatServer) -> None:
    _, pauses = asked(server, [(503, b"", {"Retry-After": "86400"}), (200, completion("x"))])
    assert pauses == [LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (BUSY, "HTTP 429: slow down"),
        (BROKEN, "HTTP 500: oops"),
        (GARBAGE, "no chat completion: '<html>hello"),
        ((200, b'{"choices": [{"message": {"content": [1]}}]}'), "no text but list"),
        ((200, b" " * (LARGEST + 1)), "more than"),
        (lambda handler: handler.connection.close(), "Remote"),
    ],
    ids=["429", "500", "garbage", "not a text", "endless", "closed"],
)
def test_failures_that_stay_are_a_sentence_after_a_few_attempts(server: ChatServer, reply: Any, said: str) -> None:
    with pytest.raises(UserError, match=r"did not answer in 3 attempts .*name another one with --judge") as raised:
        asked(server, [reply], attempts=3)
    assert said in str(raised.value)
    assert len(server.requests) == 3


def hang(server: ChatServer) -> Any:
    return lambda handler: server.released.wait(20)


def drip(server: ChatServer) -> Any:
    """A byte now and then: each comes in time, and all of them never do."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not server.released.wait(0.05):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return

    return send


@pytest.mark.parametrize("late", [hang, drip])
def test_a_late_answer_is_given_up(server: ChatServer, late: Any) -> None:
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"2 attempts \(no answer within 0.3 seconds\)"):
        asked(server, [late(server)], attempts=2, timeout=0.3)
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ((401, b'{"error": {"message": "bad key"}}'), r"does not accept the key \(HTTP 401: bad key\)"),
        ((404, b'{"error": "no model m"}'), r"HTTP 404: no model m\); correct --judge_model"),
        ((302, b"", {"Location": "/elsewhere"}), "has moved to /elsewhere"),
        ((400, b"\x1b[2Jbad\nidea"), r"HTTP 400: \[2Jbad idea\)"),
    ],
    ids=["401", "404", "302", "400"],
)
def test_failures_that_will_stay_are_not_tried_again(server: ChatServer, reply: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        asked(server, [reply], key="secret")
    assert len(server.requests) == 1


def test_nobody_there() -> None:
    server = ChatServer()
    server.close()
    with pytest.raises(UserError, match=r"2 attempts \(.*refused"):
        Endpoint(server.url, "m", attempts=2, sleep=lambda seconds: None)("hello")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"url": "ftp://host/v1"}, "is not a URL"),
        ({"url": "http:///v1"}, "is not a URL"),
        ({"url": "http://user:word@host/v1"}, "without user, password"),
        ({"url": "http://host/v1?key=1"}, "without user, password"),
        ({"url": "http://host/v1", "key": "k"}, "Use https:// for host"),
        ({"key": "a\nb"}, "set it again"),
        ({"key": ""}, "set it again"),
        ({"model": ""}, "--judge_model NAME"),
        ({"timeout": 0.0}, "--judge_timeout"),
        ({"attempts": 0}, "at least one attempt"),
    ],
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Endpoint(**{"url": "https://host/v1", "model": "m", **changes})


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("https://host/v1", "m", "secret"))


def test_key_from_the_environment() -> None:
    assert key_from("KEY", {"KEY": "k"}) == "k"
    assert key_from("KEY", {}) is None
    assert key_from("", {"": "k"}) is None


def test_is_url() -> None:
    assert is_url("HTTP://x")
    assert not is_url("org/http")
