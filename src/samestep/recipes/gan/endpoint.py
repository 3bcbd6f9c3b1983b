"""A judge behind an OpenAI-compatible endpoint: chat completions over HTTP, with Python's own urllib.

Nothing is sent unless the user names a URL as the judge. A request that fails for a while (too many requests, an error
of the server, no answer in time) is sent again a few times; one that will always fail ends the command.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from samestep import UserError

CHAT = "/chat/completions"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LARGEST = 4 * 2**20
"""Bytes of an answer at most."""
LONGEST_PAUSE = 60.0
"""Seconds between two requests at most, whatever the server asks for."""
_TRANSIENT = (408, 425, 429)
"""Beside errors of the server (5xx), what may be gone at the next request."""


def is_url(text: str) -> bool:
    """Whether a user named an endpoint."""
    return text.lower().startswith(("http://", "https://"))


@dataclass(frozen=True)
class Endpoint:
    """An endpoint and a model there."""

    url: str
    """Such as http://localhost:8000/v1; chat/completions is added where it is missing."""
    model: str
    key: str | None = field(default=None, repr=False)
    """Sent as the bearer token."""
    timeout: float = 60.0
    """Seconds for one request, from its begin to the last byte of the answer."""
    attempts: int = 5
    """Requests for one answer at most."""
    answer_tokens: int | None = 512
    """Tokens of an answer at most; None leaves it to the server."""
    temperature: float | None = 0.0
    """None leaves it to the server."""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Refuse what cannot be asked, before anything is written or sent."""
        parts = urlsplit(self.url)
        if not is_url(self.url) or not parts.hostname:
            raise UserError(f"Name the endpoint as http://HOST:PORT/v1 or https://...; {self.url} is not a URL.")
        if parts.username is not None or parts.query or parts.fragment:
            raise UserError(
                "Name the endpoint without user, password, ? and #; its key comes from an environment variable."
            )
        if not self.model:
            raise UserError(f"Name the model that {parts.hostname} is to judge with: --judge_model NAME.")
        if self.key is not None and (not self.key.isprintable() or not self.key.isascii() or not self.key.strip()):
            raise UserError("The key of the endpoint is empty or has characters that no key has; set it again.")
        if self.key is not None and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise UserError(
                f"Use https:// for {parts.hostname}, or unset the variable with the key: http would show it to others."
            )
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"--judge_timeout must be a number of seconds above 0, not {self.timeout:g}.")
        if self.attempts < 1:
            raise UserError(f"An endpoint needs at least one attempt, not {self.attempts}.")

    @property
    def address(self) -> str:
        plain = self.url.rstrip("/")
        return plain if plain.endswith(CHAT) else plain + CHAT

    def __call__(self, message: str) -> str:
        """The model's answer to a user's message; empty where it has none."""
        problem = ""
        for attempt in range(self.attempts):
            try:
                return _content(self._send(message))
            except _Transient as error:
                problem = str(error)
                if attempt + 1 < self.attempts:
                    self.sleep(min(LONGEST_PAUSE, max(error.pause, 0.5 * 2**attempt)))
        raise UserError(
            f"The judge at {self.address} did not answer in {self.attempts} attempts ({problem}); see whether it runs, "
            "or name another one with --judge."
        )

    def _send(self, message: str) -> bytes:
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": message}]}
        if self.answer_tokens is not None:
            body["max_tokens"] = self.answer_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "samestep"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = Request(self.address, json.dumps(body).encode(), headers, method="POST")
        end = time.monotonic() + self.timeout
        try:
            with self._opener().open(request, timeout=self.timeout) as response:
                return _read(response, end)
        except HTTPError as error:
            raise self._refused(error, end) from None
        except TimeoutError:
            raise _Transient(f"no answer within {self.timeout:g} seconds") from None
        except URLError as error:
            late = isinstance(error.reason, TimeoutError)
            what = f"no answer within {self.timeout:g} seconds" if late else f"{error.reason}"
            raise _Transient(what) from None
        except (OSError, HTTPException) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from None

    def _opener(self) -> OpenerDirector:
        """Through the proxy of the environment, but not to this machine itself."""
        is_here = urlsplit(self.url).hostname in LOOPBACK
        return build_opener(_NoRedirect, *([ProxyHandler({})] if is_here else []))

    def _refused(self, error: HTTPError, end: float) -> Exception:
        """What an error of the server means: to be sent again, or a sentence for the user."""
        said = _said(error, end)
        if error.code in _TRANSIENT or error.code >= 500:
            return _Transient(f"HTTP {error.code}{said}", _pause(error.headers.get("Retry-After")))
        if error.code in (401, 403):
            return UserError(f"{self.address} does not accept the key (HTTP {error.code}{said}); set another one.")
        if 300 <= error.code < 400:
            where = error.headers.get("Location", "nowhere")
            return UserError(f"{self.address} has moved to {where}; if you trust that, name it with --judge.")
        return UserError(f"{self.address} refuses the request (HTTP {error.code}{said}); correct --judge_model or URL.")


def key_from(variable: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key in an environment variable; None where it is not set."""
    return environment.get(variable) if variable else None


class _Transient(Exception):
    """A failure that may be gone at the next request."""

    def __init__(self, text: str, pause: float = 0.0) -> None:
        super().__init__(text)
        self.pause = pause


class _NoRedirect(HTTPRedirectHandler):
    """Texts and keys go where the user said, and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _read(response: Any, end: float) -> bytes:
    """The whole answer; the socket's own timeout is for one piece of it."""
    found = b""
    while piece := response.read1(2**16):
        found += piece
        if len(found) > LARGEST:
            raise _Transient(f"an answer of more than {LARGEST} bytes")
        if time.monotonic() > end:
            raise TimeoutError
    return found


def _content(data: bytes) -> str:
    """The text in a chat completion. A model that refuses to answer gives none."""
    try:
        content = json.loads(data)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        shown = data[:80].decode(errors="replace")
        raise _Transient(f"its answer is no chat completion: {shown!r}") from None
    if content is not None and not isinstance(content, str):
        raise _Transient(f"its answer is no text but {type(content).__name__}")
    return content or ""


def _said(error: HTTPError, end: float) -> str:
    """The server's own explanation, if it has one, on one line."""
    try:
        data = _read(error, end)
    except (OSError, HTTPException, _Transient):
        return ""
    try:
        found = json.loads(data)["error"]
        text = found["message"] if isinstance(found, Mapping) else found
    except (ValueError, LookupError, TypeError, RecursionError):
        text = data.decode(errors="replace")
    line = "".join(letter for letter in " ".join(str(text).split()) if letter.isprintable())
    return f": {line[:200]}" if line else ""


def _pause(text: str | None) -> float:
    """Seconds that the server asks to wait; a date or nothing leaves it to us."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0
