"""Reading a config file, within limits that are checked before any library builds something from the text.

A few lines of YAML can stand for billions of values (an alias of a list of aliases), or nest deeper than Python can
follow. No config of people comes near these limits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError

MAX_BYTES = 500_000
MAX_DEPTH = 50
MAX_VALUES = 100_000
_reads: ContextVar[dict[Path, str] | None] = ContextVar("config files that are read", default=None)


@contextmanager
def recorded_reads() -> Iterator[dict[Path, str]]:
    """The text of every config file that is read inside, by its path: also of those that other files name."""
    found: dict[Path, str] = {}
    token = _reads.set(found)
    try:
        yield found
    finally:
        _reads.reset(token)


def read_config_text(path: Path) -> str:
    """The text of a config file; YAML is checked."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); fix the path or the permissions.") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES:,} bytes; keep settings there, and data in other files.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; save it as UTF-8.") from None
    if path.suffix == ".yaml":
        check_yaml(text, str(path))
    if (reads := _reads.get()) is not None:
        reads[path] = text
    return text


def check_yaml(text: str, where: str) -> None:
    """Refuse YAML that nests too deeply or whose aliases stand for too many values; wrong YAML is not noticed here."""
    import yaml

    sizes: dict[str, int] = {}  # values that each anchor stands for
    open_counts, open_anchors = [0], [""]
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                open_counts.append(1)
                open_anchors.append(event.anchor or "")
                if len(open_counts) > MAX_DEPTH:
                    raise UserError(f"{where} nests lists and mappings more than {MAX_DEPTH} deep; make it flatter.")
                continue
            if isinstance(event, yaml.CollectionEndEvent):
                size, anchor = open_counts.pop(), open_anchors.pop()
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor in open_anchors:
                    raise UserError(f"{where} has an alias *{event.anchor} inside of what it stands for; remove it.")
                size, anchor = sizes.get(event.anchor or "", 1), ""
            elif isinstance(event, yaml.ScalarEvent):
                size, anchor = 1, event.anchor or ""
            else:
                continue
            sizes |= {anchor: size} if anchor else {}
            open_counts[-1] += size
            if open_counts[-1] > MAX_VALUES:
                raise UserError(f"{where} stands for more than {MAX_VALUES:,} values; remove some aliases.")
    except (yaml.YAMLError, ValueError):  # reported by whoever reads it
        return


def check_depth(data: Any, where: str) -> None:
    """Refuse data that nests too deeply."""
    level, depth = [data], 0
    while level := [
        item
        for value in level
        if isinstance(value, Mapping | list)
        for item in (value.values() if isinstance(value, Mapping) else value)
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise UserError(f"{where} nests lists and mappings more than {MAX_DEPTH} deep; make it flatter.")
