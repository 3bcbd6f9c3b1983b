"""What of a run may be told to others: no path of the machine it ran on, and nothing that looks like a secret.

A model's card and the settings in an exported folder go through here. Of a path its last part stays. What may be a key,
a password or an address is left out.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
_DATA_FILE = re.compile(
    r".*\.(jsonl?|[ct]sv|txt|parquet|arrow|pt|pth|bin|ckpt|safetensors|gguf|py|ya?ml|gz|zip|xz|zst)"
)
_SECRET_NAME = re.compile(r"(.*_)?(token|secret|password|passwd|passphrase|credentials?|cookie|(.+_)?key)", re.I)
_PLAIN_KEY = re.compile(r".*(text|sort|group|label|column|field)_key", re.I)
_MARKED = (  # their issuers mark them so
    r"\b(?:hf|sk|pk|rk|gh[a-z]|github_pat|glpat|xox[a-z]|pypi|npm|dckr_pat)[_-][\w-]{12,}"
    r"|\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{10,}\.[\w-]+|-----BEGIN |\bBearer\s"
)
_SECRET = re.compile(
    rf"{_MARKED}"
    r"|\b[0-9a-fA-F]{32,}\b"
    r"|(?=[a-zA-Z+=]*[0-9])(?=[A-Z0-9+=]*[a-z])(?=[a-z0-9+=]*[A-Z])\b[a-zA-Z0-9+=]{32,}"
)
_ADDRESS = re.compile(r"\w+://|\w+@[\w.-]+:")
_PATH_IN_TEXT = re.compile(r"(?<![\w.])(?:~|\.{0,2})/[^\s,;:=]*")
_LEAST_SECRET = 6
"""Characters of a value in the environment that is looked for."""


def is_of_hub(name: str) -> bool:
    """Whether a name is that of a model or of data on the Hub: a path of this machine is no name for others."""
    is_name = _HUB_NAME.fullmatch(name) is not None and _DATA_FILE.fullmatch(name) is None
    return is_name and not Path(name).exists()


def told_text(text: str) -> str | None:
    """A text as it may be told; None if it may not be."""
    if is_of_hub(text):
        return None if _is_in_environment(text) else text
    if _SECRET.search(text) or _ADDRESS.search(text) or _is_in_environment(text):
        return None
    if text.startswith(("/", "~", "./", "../")) or Path(text).exists():
        return Path(text).name
    if not re.search(r"\s", text):  # a path, or several with marks between them, such as RUN:LEARNER
        return re.sub(r"[^,;:=]+", lambda part: part[0] if is_of_hub(part[0]) else Path(part[0]).name, text)
    return _PATH_IN_TEXT.sub(lambda found: Path(found[0]).name, text)


def told(value: Any) -> Any:
    """A value of a setting as it may be told: sections without what may not be, lists likewise; None if it may not
    be."""
    if isinstance(value, str):
        return told_text(value)
    if isinstance(value, Mapping):
        kept = {
            told_text(str(name)): told(inner) for name, inner in value.items() if not hides_secret(str(name), inner)
        }
        return {name: inner for name, inner in kept.items() if name is not None}
    if isinstance(value, list | tuple):
        return [kept for kept in map(told, value) if kept is not None]
    return value


def hides_secret(name: str, value: Any) -> bool:
    """Whether a setting holds a secret, by its name or because it may not be told."""
    if value is None:
        return False
    is_named_so = _SECRET_NAME.fullmatch(name) is not None and _PLAIN_KEY.fullmatch(name) is None
    return isinstance(value, str) and (is_named_so or told_text(value) is None)


def without_secrets(text: str, shown: str) -> str:
    """A text of any length, such as what a model wrote, with `shown` in place of what is certainly a secret."""
    for value in _secrets_of_environment():
        text = text.replace(value, shown)
    return re.sub(_MARKED, shown, text)


def _is_in_environment(text: str) -> bool:
    """Whether a text has a secret of this process's environment in it."""
    return any(value in text for value in _secrets_of_environment())


def _secrets_of_environment() -> list[str]:
    named = ((name, value) for name, value in os.environ.items() if len(value) >= _LEAST_SECRET)
    return [value for name, value in named if _SECRET_NAME.fullmatch(name) is not None]
