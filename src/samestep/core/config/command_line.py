"""The words of a command line as settings: `key=value`, `--key value`, `--key=value`, `--flag` and `--no-flag`.

A value is data, never an expression: any text is legal, also `Hello, world`, `a=b`, `<x>` and `${x}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep.core.config.schema import FALSE_WORDS, TRUE_WORDS, is_flag, listed, locate, paths_of, unknown
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Alias:
    """Another name for a setting, with other words for its values where people know other words.

    `Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"})` named `fp16` acts as a flag.
    """

    path: str
    """Dotted name of the setting."""
    values: Mapping[str, Any] | None = None
    """What each word stands for; with a word "true" the alias is a flag. None: values are passed on as they are."""

    def translate(self, name: str, value: str | bool) -> Any:
        """What the setting becomes when the alias `name` is given `value`."""
        if self.values is None:
            return value
        word = str(value).lower() if isinstance(value, bool) else value
        boolean = "true" if word.lower() in TRUE_WORDS else "false" if word.lower() in FALSE_WORDS else word
        for candidate in (word, word.lower(), boolean):
            if candidate in self.values:
                return self.values[candidate]
        raise UserError(f"{name} must be {listed(self.values, 'or')}, not {word!r}.")


def parse(words: Sequence[str], cls: type, aliases: Mapping[str, str | Alias] | None = None) -> list[tuple[str, Any]]:
    """The settings that `words` make, in order: (dotted name, text), or a boolean for a bare flag."""
    names = _Names(cls, aliases or {})
    rest, found = list(words), []
    while rest:
        word = rest.pop(0)
        found.append(_flag(word, rest, names) if word.startswith("--") else _pair(word, names))
    return found


@dataclass(frozen=True)
class _Target:
    """What a name on the line stands for."""

    name: str
    alias: Alias
    flag: bool

    def setting(self, value: str | bool) -> tuple[str, Any]:
        return self.alias.path, self.alias.translate(self.name, value)


class _Names:
    """Every name that may stand on the line; dashes and underscores are the same."""

    def __init__(self, cls: type, aliases: Mapping[str, str | Alias]) -> None:
        self.paths = paths_of(cls)
        self.aliases = {
            name.replace("-", "_"): Alias(alias) if isinstance(alias, str) else alias for name, alias in aliases.items()
        }
        for name, alias in self.aliases.items():
            assert locate(self.paths, alias.path), f"the alias {name} names {alias.path}, which {cls} does not have"

    def find(self, name: str) -> _Target | None:
        """The setting of this name; a real field comes before an alias."""
        spelled = name.replace("-", "_")
        alias = None if spelled in self.paths else self.aliases.get(spelled)
        if alias is not None:
            flag = "true" in alias.values if alias.values is not None else self._is_flag(alias.path)
            return _Target(name, alias, flag)
        place = locate(self.paths, spelled)
        if place is None:
            return None
        field, key = place
        path = field if key is None else f"{field}.{name[len(field) + 1 :]}"  # a key keeps its dashes
        return _Target(name, Alias(path), self._is_flag(path))

    def _is_flag(self, path: str) -> bool:
        return path in self.paths and is_flag(self.paths[path])

    def refuse(self, name: str) -> UserError:
        return unknown(name, [*self.paths, *self.aliases])


def _pair(word: str, names: _Names) -> tuple[str, Any]:
    """`key=value`."""
    key, equals, value = word.partition("=")
    if not equals:
        target = names.find(word.lstrip("-"))
        hint = f"--{target.name}" if target else "key=value or --key value"
        raise UserError(f"The word {word!r} belongs to no setting; write {hint}.")
    target = names.find(key)
    if target is None:
        raise names.refuse(key)
    return target.setting(value)


def _flag(word: str, rest: list[str], names: _Names) -> tuple[str, Any]:
    """`--key=value`, `--key value`, `--flag` or `--no-flag`; takes the value off `rest`."""
    key, equals, value = word[2:].partition("=")
    target = names.find(key)
    if target is None:
        return _negated(key, equals, names)
    if equals:
        return target.setting(value)
    if target.flag:
        follows = bool(rest) and rest[0].lower() in TRUE_WORDS | FALSE_WORDS
        return target.setting(rest.pop(0) if follows else True)
    if not rest or rest[0].startswith("--"):
        shown = rest[0] if rest else "VALUE"
        raise UserError(f"--{key} needs a value; write --{key}={shown}.")
    return target.setting(rest.pop(0))


def _negated(key: str, equals: str, names: _Names) -> tuple[str, Any]:
    """`--no-flag`, once no setting of the whole name was found."""
    positive = key[3:] if key[:3] in ("no-", "no_") else ""
    target = names.find(positive) if positive else None
    if target is None:
        raise names.refuse(key)
    if not target.flag:
        raise UserError(f"--{key} cannot be: {positive} is not on or off; write --{positive} VALUE.")
    if equals:
        raise UserError(f"--{key} takes no value; write --{key} or --{positive}=VALUE.")
    return target.setting(False)


def take(words: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off options that are not settings, such as `--config FILE`: their values, and the words that remain.

    Meant for the command's own options, before `parse`. A word that is the value of `--key` is never mistaken for one,
    because a value that begins with `--` must be written `--key=--value`.
    """
    wanted = {name.replace("-", "_"): name for name in names}
    rest, remaining, found = list(words), [], {}
    while rest:
        word = rest.pop(0)
        key, equals, value = word[2:].partition("=")
        name = wanted.get(key.replace("-", "_")) if word.startswith("--") else None
        if name is None:
            remaining.append(word)
        elif equals:
            found[name] = value
        elif rest and not rest[0].startswith("--"):
            found[name] = rest.pop(0)
        else:
            raise UserError(f"--{key} needs a value; write --{key}=VALUE.")
    return found, remaining
