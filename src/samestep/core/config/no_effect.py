"""Settings that have no effect beside others. A recipe declares which, and a user who gives one is told.

One that was typed for this run is refused. One that a file or an alias sets is only said: files are shared between
runs, and aliases are there so that commands of other programs work as they are. Defaults and presets are never told,
nor is a value that switches something off (false, 0, null).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from samestep.core.config.schema import listed, locate, paths_of, section
from samestep.core.errors import UserError

Given = Mapping[str, str]
"""The settings that a user gave: dotted name to where, which is TYPED or what a message says of it, such as
`in a.yaml` or `--lr`."""
TYPED = ""
"""On the command line, by its own name."""


@dataclass(frozen=True)
class NoEffect:
    """Settings that have no effect under a condition.

    `NoEffect("decay_ratio", lambda c: c.schedule != "wsd", "only schedule=wsd decays; set that, or leave it out")`
    """

    settings: str | tuple[str, ...]
    """Dotted names, or glob patterns such as `grpo.*`."""
    when: Callable[[Any], bool]
    """Whether it is so with a configuration."""
    why: str
    """The reason, and what to do: a message says "decay_ratio has no effect: " before it."""
    is_refused: bool = True
    """False: it is only said, also where it was typed; for flags that scripts of another program pass in any case."""

    @property
    def patterns(self) -> tuple[str, ...]:
        return (self.settings,) if isinstance(self.settings, str) else self.settings

    def matches(self, path: str) -> bool:
        """Whether it is about this setting."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)


def check_no_effect(rules: Sequence[NoEffect], config: Any, given: Given) -> list[str]:
    """Refuse settings without effect that were typed; returns sentences about the others. Of several rules that are
    about a setting, the first one tells."""
    cls: type = type(config)
    paths = paths_of(cls)
    _check_patterns(rules, paths)
    given = {_field(path, paths): where for path, where in given.items()}
    if _is_whole(given, paths):
        return []
    untold = [path for path in given if _value(config, path)]
    refused: list[str] = []
    said: list[str] = []
    for rule in rules:
        found = [path for path in untold if rule.matches(path)]
        if not found or not rule.when(config):
            continue
        untold = [path for path in untold if path not in found]
        typed = [path for path in found if given[path] == TYPED and rule.is_refused]
        others = [f"{path} ({given[path]})" if given[path] else path for path in found if path not in typed]
        refused += [_sentence(typed, rule.why)] if typed else []
        said += [_sentence(others, rule.why)] if others else []
    if refused:
        raise UserError("; ".join(refused))
    return said


def _sentence(names: Sequence[str], why: str) -> str:
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'} no effect: {why}"


def _is_whole(given: Given, paths: Mapping[str, Any]) -> bool:
    """Whether all settings are given. Nobody types that: a program passes a complete configuration (`samestep.launch`),
    and most of what it holds are defaults."""
    values = {path for path, kind in paths.items() if section(kind) is None}
    fields = {path for path in values if path.rpartition(".")[0] not in values}  # not those of a mapping form
    return fields <= given.keys()


def _field(path: str, paths: Mapping[str, Any]) -> str:
    """The field that a dotted name means: of an entry in a mapping, the mapping."""
    found = locate(paths, path)
    assert found is not None, path
    return found[0]


def _value(config: Any, path: str) -> Any:
    """The value of a setting; None where it is a field of a mapping form, or of a section that is null."""
    value = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _check_patterns(rules: Iterable[NoEffect], paths: Mapping[str, Any]) -> None:
    """Refuse a rule that names no setting: it would never apply."""
    for pattern in (pattern for rule in rules for pattern in rule.patterns):
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise UserError(f"no_effect of the recipe names {pattern!r}, but there is no such setting; correct it")
