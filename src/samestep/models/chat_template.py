"""Chat templates are filled in by a process of their own, which has little time and little memory for each chat."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from samestep.core.child_python import child_env, python_command
from samestep.models import template_process

_SCRIPT = Path(template_process.__file__)
_SLOW, _MOST_SLOW = 0.1, 15.0
"""Seconds of a chat that is slow, and of all slow ones together: no template may take its time with every row."""


class TemplateError(Exception):
    """A template cannot be filled in."""


class ChatTemplate:
    """A template of jinja, as transformers fills it in."""

    def __init__(self, text: str, special: Mapping[str, str]) -> None:
        """`special` are the special tokens that it may write, by their names, such as `bos_token`."""
        self.text, self._special = text, dict(special)
        self._slow_seconds = 0.0

    def fill_in(self, messages: Sequence[Mapping[str, Any]], answer: bool) -> str:
        """A chat as the template writes it; with `answer`, up to where the model is to answer."""
        if not messages:
            raise TemplateError("there is no message")
        chat = [{name: said for name, said in message.items() if said is not None} for message in messages]
        filling = {**self._special, "conversations": [chat], "add_generation_prompt": answer}
        if self._slow_seconds > _MOST_SLOW:
            raise TemplateError(f"it took more than {_MOST_SLOW:g} s for earlier chats, too long for what it does")
        answered = _process_of(os.getpid()).fill_in(self.text, filling)
        self._slow_seconds += answered.seconds if answered.seconds > _SLOW else 0.0
        if not answered.is_well:
            raise TemplateError(answered.content)
        return answered.content


@dataclass(frozen=True)
class _Answer:
    """What came of a chat."""

    is_well: bool
    content: str
    """The text, or what is wrong."""
    seconds: float
    """Of the processor."""


class _TemplateProcess:
    """It starts with the first chat, and ends when this process does: then it has nothing to read any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: subprocess.Popen[bytes] | None = None
        self._last_template: str | None = None

    def fill_in(self, template: str, filling: Mapping[str, Any]) -> _Answer:
        with self._lock:
            process = self._started or self._start()
            request = json.dumps([None if template is self._last_template else template, filling])
            self._last_template = template
            try:
                return _ask(process, request.encode() + b"\n")
            except (BrokenPipeError, EOFError):
                self._started = None
        return _Answer(False, _death(process), template_process.SECONDS)

    def _start(self) -> "subprocess.Popen[bytes]":
        self._last_template = None
        self._started = subprocess.Popen(
            python_command(str(_SCRIPT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_env(),
            process_group=0,  # a stop that is meant for a rank must not end it in the middle of a chat
        )
        return self._started


def _ask(process: "subprocess.Popen[bytes]", request: bytes) -> _Answer:
    """Its answer; EOFError if it ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    process.stdin.flush()
    header = process.stdout.readline().split()
    if len(header) != 3:
        raise EOFError
    content = process.stdout.read(int(header[2])).decode(*template_process.CODING)
    return _Answer(header[0] == b"1", content, int(header[1]) / 1e6)


@cache
def _process_of(pid: int) -> _TemplateProcess:
    """One for each process: a worker that was forked cannot share that of its parent."""
    return _TemplateProcess()


def _death(process: "subprocess.Popen[bytes]") -> str:
    code = process.wait()
    if code == -signal.SIGPROF:
        return f"it takes more than {template_process.SECONDS:g} s for one chat"
    return f"the process that fills it in ended with {code}"
