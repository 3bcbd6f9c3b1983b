"""The options of a recipe's verb and the settings beside them, from the words of a command line."""

from collections.abc import Callable, Sequence
from typing import Any

from samestep.core.config import (
    Aliases,
    dump,
    is_flag,
    override,
    paths_of,
    split_args,
    switch_takes,
    takes_any,
)
from samestep.core.config.schema import locate
from samestep.core.config.unknown_settings import unknown_setting
from samestep.core.errors import UserError
from samestep.train.api.recipe import Recipe, Verb


def read_options(verb: Verb, recipe: Recipe, args: Sequence[str]) -> tuple[Any, Callable[[Any], Any]]:
    """The verb's own options, and a function that gives a model's configuration with the other settings changed."""
    mine, settings = _split_fields(args, verb.options)
    options = _parse_options(verb.options, mine)
    aliases = {**verb.aliases, **recipe.all_aliases}
    _refuse_unknown(settings, verb.options, recipe.config, aliases)
    return options, lambda config: override(recipe.config, dump(config), aliases=aliases, args=settings)


def _split_fields(args: Sequence[str], cls: type) -> tuple[list[str], list[str]]:
    """The args that set fields of `cls`, and the others; each with its value."""
    paths = paths_of(cls)

    def is_switch(name: str) -> bool:
        return any(one in paths and is_flag(paths[one]) for one in (name, name.removeprefix("no_")))

    def takes(key: str, following: str) -> bool:
        return switch_takes(following) if is_switch(key.replace("-", "_")) else takes_any(key, following)

    mine: list[str] = []
    others: list[str] = []
    for each in split_args(args, takes):
        (mine if each.name in paths or is_switch(each.name) else others).extend(each.args)
    return mine, others


def _parse_options(cls: type, args: Sequence[str]) -> Any:
    try:
        return override(cls, {}, args=args)
    except UserError as error:
        # Its sentence begins with the name of the field, which the user knows as a flag.
        is_named = str(error).partition(" ")[0] in paths_of(cls)
        raise UserError(f"--{error}" if is_named else str(error)) from None


def _refuse_unknown(args: Sequence[str], options: type, config: type, aliases: Aliases) -> None:
    """Refuse a flag that is none, with the nearest among options and settings."""
    paths = paths_of(config)
    for name in (each.name for each in split_args(args) if each.is_option):
        if not any(one in aliases or locate(paths, one) for one in (name, name.removeprefix("no_"))):
            raise unknown_setting(name, [*paths_of(options), *aliases, *paths])
