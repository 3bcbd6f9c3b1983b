"""What of a run is shown to others, in reports, TensorBoard and W&B: no secret, and no home folder.

Unlike a model's card it keeps paths."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from samestep.train.trained.told import hides_secret

HIDDEN = "(hidden)"
_HOME = re.compile(r"(?:/home|/Users)/[^/\s:,]+|(?<![\w/])/root(?![\w.-])")


def shown_text(text: str, name: str = "") -> str:
    """A text, such as the value of the setting `name`."""
    return HIDDEN if hides_secret(name, text) else without_home(text)


def without_home(text: str) -> str:
    """A text with ~ in place of home folders."""
    return _HOME.sub("~", text)


def shown_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they may be shown, in the same sections."""
    return {shown_text(str(name)): _shown(value, str(name)) for name, value in settings.items()}


def flat_values(shown: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What `shown_settings` gives, those of sections as section.name."""
    for name, value in shown.items():
        if isinstance(value, dict):
            yield from flat_values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def setting_text(value: Any) -> str:
    """The value of a setting, as it is written."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value}"


def _shown(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return shown_settings(value)
    if isinstance(value, list | tuple):
        return [_shown(inner, name) for inner in value]
    if isinstance(value, str):
        return shown_text(value, name)
    return HIDDEN if value is not None and hides_secret(name, setting_text(value)) else value
