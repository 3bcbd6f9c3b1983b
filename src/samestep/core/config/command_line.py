"""Command-line args as settings: `key=value`, `--key value`, `--key=value`, `--flag` and `--no-flag`; and Hydra's
`+key=value`, `++key=value` (the same as `key=value`, since every setting exists) and `~key` (back to the default).

A value is data, never an expression. Any text is legal, also `Hello, world`, `a=b`, `<x>` and `${x}`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from samestep.core.config.schema import FALSE_WORDS, TRUE_WORDS, is_flag, listed, locate, paths_of
from samestep.core.config.unknown_settings import unknown_setting
from samestep.core.errors import UserError

BACK_TO_DEFAULT: Final = object()
"""In place of a setting's value: whatever presets and files say, it has its default."""


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
    """The settings in `args`, in order: (dotted name, text), a boolean for a bare flag, or BACK_TO_DEFAULT."""
    return [target.setting(value) for target, value in _parse(args, cls, aliases or {})]


def aliases_used(args: Sequence[str], cls: type, aliases: Mapping[str, str | Alias] | None = None) -> dict[str, str]:
    """The settings in `args` that are given by another name only: dotted name to that name."""
    targets = [target for target, _ in _parse(args, cls, aliases or {})]
    own = {target.alias.path for target in targets if not target.is_alias}
    return {target.alias.path: target.name for target in targets if target.alias.path not in own}


def _parse(args: Sequence[str], cls: type, aliases: Mapping[str, str | Alias]) -> list[tuple["_Target", Any]]:
    names = _Names(cls, aliases)
    found = split_args(args, names.takes)
    return [_parse_option(each, names) if each.is_option else _parse_pair(each.args[0], names) for each in found]


@dataclass(frozen=True)
class Argument:
    """One part of a command line: an option with its value, or any other arg."""

    args: tuple[str, ...]
    """As it was written."""
    key: str
    """What is named: that of `--key`, `--key value`, `--key=value` and `key=value`."""
    value: str | None
    is_option: bool
    """Whether it begins with `--`."""
    following: str | None = None
    """The arg after it, which is not its value."""

    @property
    def name(self) -> str:
        """The key as fields are spelled: dashes and underscores are the same."""
        return self.key.replace("-", "_")


def takes_any(key: str, following: str) -> bool:
    """Whether `--key` takes the arg that follows it as its value: any that is no option itself."""
    return not following.startswith("--")


def split_args(args: Sequence[str], takes: Callable[[str, str], bool] = takes_any) -> list[Argument]:
    """The parts of a command line, in order; `takes(key, following)` says which option has the next arg as its value.

    A value that begins with `--` must be written `--key=--value`.
    """
    rest, found = list(args), []
    while rest:
        arg = rest.pop(0)
        is_option = arg.startswith("--")
        key, equals, value = arg.removeprefix("--").partition("=")
        if is_option and not equals and rest and takes(key, rest[0]):
            found.append(Argument((arg, rest[0]), key, rest.pop(0), is_option))
        else:
            found.append(Argument((arg,), key, value if equals else None, is_option, rest[0] if rest else None))
    return found


def switch_takes(following: str) -> bool:
    """Whether the arg after a flag is its value: only a word for true or false."""
    return following.lower() in TRUE_WORDS | FALSE_WORDS


def split_options(
    args: Sequence[str], names: Sequence[str], switches: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Separate options that are not settings, such as `--config FILE`: their values, and the remaining args.

    For the options of a command itself, before `parse_settings`. `switches` take no value; those that are given are
    among the options, with an empty one.
    """
    wanted = {name.replace("-", "_"): name for name in (*names, *switches)}
    remaining: list[str] = []
    found: dict[str, str] = {}

    def takes(key: str, following: str) -> bool:
        return wanted.get(key.replace("-", "_")) not in switches and takes_any(key, following)

    for each in split_args(args, takes):
        name = wanted.get(each.name) if each.is_option else None
        if name is None:
            remaining += each.args
        elif name in switches:
            if each.value is not None:
                raise UserError(f"--{name} takes no value; write --{name}.")
            found[name] = ""
        elif each.value is None:
            raise UserError(f"--{each.key} needs a value; write --{each.key}=VALUE.")
        else:
            found[name] = each.value
    return found, remaining


@dataclass(frozen=True)
class _Target:
    """The setting that a name on the command line refers to."""

    name: str
    alias: Alias
    flag: bool
    is_alias: bool = False

    def setting(self, value: Any) -> tuple[str, Any]:
        return self.alias.path, value if value is BACK_TO_DEFAULT else self.alias.translate(self.name, value)


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

    def takes(self, key: str, following: str) -> bool:
        """Whether `--key` takes the arg that follows it. After a flag that is true or false, or a word that is nothing
        else and is refused."""
        target = self.find(key)
        if target is None or not target.flag:
            return target is not None and takes_any(key, following)
        return switch_takes(following) or not (following.startswith("-") or "=" in following or self.find(following))

    def unknown(self, name: str) -> UserError:
        return unknown_setting(name, [*self.paths, *self.aliases])


def _parse_pair(arg: str, names: _Names) -> tuple[_Target, Any]:
    """`key=value`, also with Hydra's `+` or `++` before it; or `~key`."""
    if arg.startswith("~"):
        return _parse_removal(arg[1:], names), BACK_TO_DEFAULT
    key, equals, value = arg.removeprefix("+").removeprefix("+").partition("=")
    if not equals:
        target = names.find(arg.lstrip("-+"))
        hint = f"--{target.name}" if target else "key=value or --key value"
        raise UserError(f"The argument {arg!r} belongs to no setting; write {hint}.")
    target = names.find(key)
    if target is None:
        raise names.unknown(key)
    return target, value


def _parse_removal(key: str, names: _Names) -> _Target:
    """What follows `~`."""
    name, equals, value = key.partition("=")
    target = names.find(name)
    if target is None:
        raise names.unknown(name)
    if equals:
        raise UserError(f"~{key} is not possible; write ~{name} for the default of {name}, or {name}={value}.")
    return target


def _parse_option(given: Argument, names: _Names) -> tuple[_Target, str | bool]:
    """`--key=value`, `--key value`, `--flag` or `--no-flag`."""
    target = names.find(given.key)
    if target is None:
        return _parse_negated_flag(given.key, given.value is not None, names)
    if given.value is not None:
        return target, given.value
    if target.flag:
        return target, True
    raise UserError(f"--{given.key} needs a value; write --{given.key}={given.following or 'VALUE'}.")


def _parse_negated_flag(key: str, has_value: bool, names: _Names) -> tuple[_Target, str | bool]:
    """`--no-flag`, after no setting of the full name was found."""
    positive = key[3:] if key[:3] in ("no-", "no_") else ""
    target = names.find(positive) if positive else None
    if target is None:
        raise names.unknown(key)
    if not target.flag:
        raise UserError(f"--{key} is not possible: {positive} is not on or off; write --{positive} VALUE.")
    if has_value:
        raise UserError(f"--{key} takes no value; write --{key} or --{positive}=VALUE.")
    return target, False
