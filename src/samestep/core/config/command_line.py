"""Command-line args as settings: `key=value`, `--key value`, `--key=value`, `--flag` and `--no-flag`.

A value is data, never an expression. Any text is legal, also `Hello, world`, `a=b`, `<x>` and `${x}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep.core.config.schema import FALSE_WORDS, TRUE_WORDS, is_flag, listed, locate, paths_of, unknown_setting
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Alias:
    """Another name for a setting, where needed with other names for its values.

    `Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"})` under the name `fp16` acts as a flag.
    """

    path: str
    """Dotted name of the setting."""
    values: Mapping[str, Any] | None = None
    """The setting's value for each value of the alias; with a key "true" the alias is a flag. None: values are kept."""

    def translate(self, name: str, value: str | bool) -> Any:
        """The setting's value when the alias `name` is given `value`."""
        if self.values is None:
            return value
        text = str(value).lower() if isinstance(value, bool) else value
        boolean = "true" if text.lower() in TRUE_WORDS else "false" if text.lower() in FALSE_WORDS else text
        for candidate in (text, text.lower(), boolean):
            if candidate in self.values:
                return self.values[candidate]
        raise UserError(f"{name} must be {listed(self.values, 'or')}, not {text!r}.")


def parse_settings(
    args: Sequence[str], cls: type, aliases: Mapping[str, str | Alias] | None = None
) -> list[tuple[str, Any]]:
    """The settings in `args`, in order: (dotted name, text), or a boolean for a bare flag."""
    return [target.setting(value) for target, value in _parse(args, cls, aliases or {})]


def aliases_used(args: Sequence[str], cls: type, aliases: Mapping[str, str | Alias] | None = None) -> dict[str, str]:
    """The settings in `args` that are given by another name only: dotted name to that name."""
    targets = [target for target, _ in _parse(args, cls, aliases or {})]
    own = {target.alias.path for target in targets if not target.is_alias}
    return {target.alias.path: target.name for target in targets if target.alias.path not in own}


def _parse(args: Sequence[str], cls: type, aliases: Mapping[str, str | Alias]) -> list[tuple["_Target", str | bool]]:
    names = _Names(cls, aliases)
    rest, found = list(args), []
    while rest:
        arg = rest.pop(0)
        found.append(_parse_option(arg, rest, names) if arg.startswith("--") else _parse_pair(arg, names))
    return found


def split_options(args: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate options that are not settings, such as `--config FILE`: their values, and the remaining args.

    For the options of a command itself, before `parse_settings`. The value of another `--key` is never mistaken for
    one, because a value that begins with `--` must be written `--key=--value`.
    """
    wanted = {name.replace("-", "_"): name for name in names}
    rest, remaining, found = list(args), [], {}
    while rest:
        arg = rest.pop(0)
        key, equals, value = arg[2:].partition("=")
        name = wanted.get(key.replace("-", "_")) if arg.startswith("--") else None
        if name is None:
            remaining.append(arg)
        elif equals:
            found[name] = value
        elif rest and not rest[0].startswith("--"):
            found[name] = rest.pop(0)
        else:
            raise UserError(f"--{key} needs a value; write --{key}=VALUE.")
    return found, remaining


@dataclass(frozen=True)
class _Target:
    """The setting that a name on the command line refers to."""

    name: str
    alias: Alias
    flag: bool
    is_alias: bool = False

    def setting(self, value: str | bool) -> tuple[str, Any]:
        return self.alias.path, self.alias.translate(self.name, value)


class _Names:
    """Every name that the command line may use; dashes and underscores are the same."""

    def __init__(self, cls: type, aliases: Mapping[str, str | Alias]) -> None:
        self.paths = paths_of(cls)
        self.aliases = {
            name.replace("-", "_"): Alias(alias) if isinstance(alias, str) else alias for name, alias in aliases.items()
        }
        for name, alias in self.aliases.items():
            assert locate(self.paths, alias.path), f"the alias {name} names {alias.path}, which {cls} does not have"

    def find(self, name: str) -> _Target | None:
        """The setting of this name; a field takes precedence over an alias."""
        spelled = name.replace("-", "_")
        alias = None if spelled in self.paths else self.aliases.get(spelled)
        if alias is not None:
            flag = "true" in alias.values if alias.values is not None else self._is_flag(alias.path)
            return _Target(name, alias, flag, is_alias=True)
        found = locate(self.paths, spelled)
        if found is None:
            return None
        field, key = found
        path = field if key is None else f"{field}.{name[len(field) + 1 :]}"  # a key keeps its dashes
        return _Target(name, Alias(path), self._is_flag(path))

    def _is_flag(self, path: str) -> bool:
        return path in self.paths and is_flag(self.paths[path])

    def unknown(self, name: str) -> UserError:
        return unknown_setting(name, [*self.paths, *self.aliases])


def _parse_pair(arg: str, names: _Names) -> tuple[_Target, str | bool]:
    """`key=value`."""
    key, equals, value = arg.partition("=")
    if not equals:
        target = names.find(arg.lstrip("-"))
        hint = f"--{target.name}" if target else "key=value or --key value"
        raise UserError(f"The argument {arg!r} belongs to no setting; write {hint}.")
    target = names.find(key)
    if target is None:
        raise names.unknown(key)
    return target, value


def _parse_option(arg: str, rest: list[str], names: _Names) -> tuple[_Target, str | bool]:
    """`--key=value`, `--key value`, `--flag` or `--no-flag`; takes the value from `rest`."""
    key, equals, value = arg[2:].partition("=")
    target = names.find(key)
    if target is None:
        return _parse_negated_flag(key, equals, names)
    if equals:
        return target, value
    if target.flag:
        return target, (rest.pop(0) if rest and _is_flag_value(rest[0], names) else True)
    if not rest or rest[0].startswith("--"):
        shown = rest[0] if rest else "VALUE"
        raise UserError(f"--{key} needs a value; write --{key}={shown}.")
    return target, rest.pop(0)


def _is_flag_value(arg: str, names: _Names) -> bool:
    """Whether an arg after a flag is its value: true or false, or a word that is nothing else and is refused."""
    if arg.lower() in TRUE_WORDS | FALSE_WORDS:
        return True
    return not (arg.startswith("-") or "=" in arg or names.find(arg))


def _parse_negated_flag(key: str, equals: str, names: _Names) -> tuple[_Target, str | bool]:
    """`--no-flag`, after no setting of the full name was found."""
    positive = key[3:] if key[:3] in ("no-", "no_") else ""
    target = names.find(positive) if positive else None
    if target is None:
        raise names.unknown(key)
    if not target.flag:
        raise UserError(f"--{key} is not possible: {positive} is not on or off; write --{positive} VALUE.")
    if equals:
        raise UserError(f"--{key} takes no value; write --{key} or --{positive}=VALUE.")
    return target, False
