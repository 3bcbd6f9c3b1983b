"""Settings of a run, and the command that repeats it, as texts without secrets and home folders."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samestep.train.trained.shown import HIDDEN, flat_values, setting_text, shown_settings, shown_text, without_home
from samestep.train.trained.told import without_secrets


def shown_sample(text: str) -> str:
    """A text that a model wrote or read: no setting, so that all of it is shown but what is certainly a secret."""
    return without_home(without_secrets(text, HIDDEN))


def shown_command(words: Sequence[str], world: int) -> str:
    """What to type to have the same run again, on as many processes."""
    shown = ["samestep", "train", *map(_shown_word, words)]
    return shlex.join(shown) + (f" --nproc {world}" if world > 1 else "")


def flat_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings with the values that may be shown, those of sections as section.name."""
    return ((name, setting_text(value)) for name, value in flat_values(shown_settings(settings)))


def shown_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event with the values that may be shown; a launch has the words of its command."""
    command = event.get("command")
    if not isinstance(command, list):
        return shown_settings(event)
    return {**shown_settings(event), "command": [_shown_word(str(word)) for word in command]}


def _shown_word(word: str) -> str:
    """A word of a command, of which only the value of a setting can be a secret."""
    name, sign, value = word.partition("=")
    return f"{name}={shown_text(value, name.lstrip('-').rpartition('.')[2])}" if sign else shown_text(word)
