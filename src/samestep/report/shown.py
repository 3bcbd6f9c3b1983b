"""What of a run is shown to others: no secret, and no home folder. Unlike a model's card, a report keeps paths."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samestep.train.trained.told import hides_secret

HIDDEN = "(hidden)"
_HOME = re.compile(r"(?:/home|/Users)/[^/\s:,]+|(?<![\w/])/root(?![\w.-])")


def shown_text(text: str, name: str = "") -> str:
    """A text, such as the value of the setting `name`."""
    return HIDDEN if hides_secret(name, text) else _HOME.sub("~", text)


def shown_command(words: Sequence[str], world: int) -> str:
    """What to type to have the same run again, on as many processes."""
    shown = ["samestep", "train", *map(_shown_word, words)]
    return shlex.join(shown) + (f" --nproc {world}" if world > 1 else "")


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings with the values that may be shown, those of sections as section.name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, shown_text(_as_text(value), str(name))


def _shown_word(word: str) -> str:
    """A word of a command, of which only the value of a setting can be a secret."""
    name, sign, value = word.partition("=")
    return f"{name}={shown_text(value, name.lstrip('-').rpartition('.')[2])}" if sign else shown_text(word)


def _as_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value}"
