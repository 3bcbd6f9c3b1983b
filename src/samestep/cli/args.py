"""The args of verbs, in this order: those that take a run or a recipe; then `train` and `submit`.

The recipes are imported inside functions, because they need torch: `checkpoints` and `why` answer without it.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samestep.core.config import (
    Layers,
    build,
    changed,
    dump,
    fields_of,
    given_by_args,
    group_options,
    is_flag,
    listed,
    override,
    paths_of,
    read_layers,
    split_args,
    split_options,
    takes_any,
)
from samestep.core.config.command_line import Argument
from samestep.core.config.files import PACKAGE_CONF, ConfigFile, find_config_file, load_config_file, search_path
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.launching.schedulers.job import SITE_ALIASES, SITE_VARIABLE, Job, Site
from samestep.train.record.extension import LENGTH_SETTINGS, require_extendable
from samestep.train.record.run_record import RunRecord, find_run, with_run_path

if TYPE_CHECKING:
    from samestep.train.api.recipe import Recipe
    from samestep.train.session.start import Configured, StartArguments

# Verbs that take a run: checkpoints, why, watch.


def parse_run(
    args: Sequence[str], command: str, options: Sequence[str] = (), flags: Sequence[str] = ()
) -> tuple[str, dict[str, str]]:
    """The name of the run, and the options and flags that were given; `command` is how the verb is written."""
    given, names = split_options(args, options, flags)
    unknown = [arg for arg in names if arg.startswith("-")]
    if unknown or len(names) != 1:
        what = f"there is no option {unknown[0]}" if unknown else f"one run is expected, not {len(names)}"
        raise UserError(f"{what}; the command is: {command}")
    return names[0], given


def all_of(name: str, args: Sequence[str], verb: str) -> tuple[list[str], list[str]]:
    """All values of an option that may be given several times, and the other args."""
    values, rest, words = list[str](), list[str](), iter(args)
    for word in words:
        if word == f"--{name}":
            value = next(words, None)
            if value is None:
                raise UserError(f"--{name} needs a value; see samestep {verb} --help")
            values.append(value)
        elif word.startswith(f"--{name}="):
            values.append(word.partition("=")[2])
        else:
            rest.append(word)
    return values, rest


# Verbs that take a recipe: train, submit, verify, config.

CONFIG_OPTIONS = ("config", "config-path", "config-name", "allow-env")


@dataclass(frozen=True)
class RecipeArgs:
    """A recipe's name, the options of the verb, and the settings of the recipe."""

    name: str
    options: dict[str, str]
    settings: list[str]

    @classmethod
    def parse(cls, args: Sequence[str], verb: str, extra: Sequence[str] = ()) -> "RecipeArgs":
        """Parse a command line; the recipe is its first arg that is not an option."""
        from samestep.train.api.recipe_registry import known_recipes

        options, rest = split_options(args, [*CONFIG_OPTIONS, *extra])
        if not rest or rest[0].startswith("-") or "=" in rest[0]:
            raise UserError(f"samestep {verb} needs a recipe first, one of: {', '.join(known_recipes())}")
        return cls(rest[0], options, rest[1:])

    def recipe(self) -> "Recipe":
        return _find_recipe(self.name)

    def config(self, recipe: "Recipe", preset: str | None = None) -> Any:
        """Its config: default < preset < file < command line; then `resolve`, which sets what depends on the data."""
        return self.configured(recipe, preset).config

    def configured(self, recipe: "Recipe", preset: str | None = None) -> "Configured":
        """The same, with what the user should know of the settings that were given."""
        from samestep.train.api.given_settings import check_given
        from samestep.train.api.named_code import refuse_code_of_file, with_whole_paths
        from samestep.train.session.start import Configured

        layers = self._layers(recipe, preset)
        config = with_run_path(build(recipe.config, self._merged(layers)))
        typed = given_by_args(recipe.config, recipe.all_aliases, self.settings)
        config = with_whole_paths(recipe, config)
        refuse_code_of_file(recipe, config, layers.given, typed)
        config = recipe.resolve(config) if recipe.resolve else config
        return Configured(config, check_given(recipe, config, layers.given))

    def merged(self, recipe: "Recipe") -> dict[str, Any]:
        """The settings of preset, file and command line, as nested plain data."""
        return self._merged(self._layers(recipe))

    def _merged(self, layers: Layers) -> dict[str, Any]:
        return layers.merged(self.options.get("allow-env", "").split(","))

    def _layers(self, recipe: "Recipe", preset: str | None = None) -> Layers:
        file = named_config_file(self.options)
        aliases = recipe.all_aliases
        return read_layers(recipe.config, recipe.presets, aliases, preset, file, self.settings)


def named_config_file(options: Mapping[str, str]) -> ConfigFile | None:
    """The config file that options of the command line name."""
    paths = {name: Path(options[name]) for name in ("config", "config-path") if name in options}
    return find_config_file(paths.get("config"), paths.get("config-path"), options.get("config-name"))


# train, and the training part of submit.


def parse_train(args: Sequence[str]) -> "tuple[str, Recipe, Any]":
    """The recipe's name, the recipe, and the config of a new or resumed run."""
    start = read_start(args)
    return start.name, start.recipe, start.config().config


def read_start(args: Sequence[str]) -> "StartArguments":
    """What a command line starts. Only `config()` needs the run, the files and the data that it names."""
    options, rest = split_options(args, ["resume", "recipe"])
    source, given = options.get("resume"), options.get("recipe")
    if source is None:
        if given is not None:
            raise UserError("--recipe goes with --resume; a new run is started with samestep train RECIPE")
        return _new_run(args)
    if Path(source).is_file():  # a plain weight file does not name a recipe: a new run starts from it
        return _new_run([*rest, f"--continue_from={source}"])
    from samestep.train.api.recipe_registry import recipe_path
    from samestep.train.session.start import StartArguments

    name = recipe_path(given) if given else _recorded_recipe(source)
    recipe = _find_recipe(name)
    return StartArguments(name, recipe, rest, lambda: _resumed_config(recipe, find_run(source), rest), args)


def _recorded_recipe(source: str) -> str:
    """The recipe of a run that this process reads itself, if it may be used."""
    from samestep.train.api.trusted_recipes import require_trusted

    try:
        rundir = find_run(source)
    except UserError as error:
        raise UserError(f"{error}; if it is on another machine, name its recipe here with --recipe RECIPE") from None
    record = RunRecord.read(rundir)
    assert record is not None
    require_trusted(record.recipe, rundir.path)
    return record.recipe


def _new_run(args: Sequence[str]) -> "StartArguments":
    from samestep.train.api.recipe_registry import recipe_path
    from samestep.train.session.start import StartArguments

    recipe_args = RecipeArgs.parse(args, "train")
    recipe = recipe_args.recipe()
    given = [recipe_args.options, recipe_args.settings]
    return StartArguments(recipe_path(recipe_args.name), recipe, given, lambda: recipe_args.configured(recipe), args)


def _find_recipe(name: str) -> "Recipe":
    from samestep.train.api.recipe_registry import find_recipe

    return find_recipe(name)


def _resumed_config(recipe: "Recipe", rundir: RunDir, args: Sequence[str]) -> "Configured":
    """The run's own config; only settings that do not affect the results may be overridden, and its length."""
    from samestep.train.api.given_settings import RESUMED, check_given
    from samestep.train.api.named_code import require_trusted_code, with_whole_paths
    from samestep.train.session.start import Configured

    record = RunRecord.read(rundir)
    assert record is not None
    record.require_version(rundir, recipe.version)  # before its settings are read: another version may have others
    data = {**record.config, "name": rundir.path.name, "out": str(rundir.path.parent)}
    aliases = recipe.all_aliases
    config = with_whole_paths(recipe, override(recipe.config, data, aliases=aliases, args=args))
    given = given_by_args(recipe.config, aliases, args)
    require_trusted_code(recipe, config, given, rundir.path)
    fixed = changed(record.config, dump(config), recipe.config)
    if set(fixed) - set(LENGTH_SETTINGS):
        raise UserError(
            f"{', '.join(fixed)} cannot change when {rundir.path} is resumed, because it would be a different run; "
            f"leave it out, or start a new run with init_from={rundir.path}"
        )
    more = [RESUMED] if rundir.first_launch.exists() else []
    notes = check_given(recipe, config, given, more)
    if fixed:
        require_extendable(rundir, *record.lengths(config, recipe.length_configs))
        config = replace(config, extend=True)
    return Configured(config, notes)


# submit: options of the batch job, and the args of train.

REPEATED = {"directive": "directives", "module": "modules", "setup": "setup", "srun": "srun", "env": "env"}
"""Options that may be repeated, and the field of the site to which each adds."""
_STAGE_GPUS = "num_gpus_"


@dataclass(frozen=True)
class SubmitArgs:
    """The parsed command line of `samestep submit`."""

    job: Job
    stage_gpus: Mapping[str, int]
    """Number of GPUs of each stage that has its own."""
    training: list[str]
    """Args of `samestep train`."""

    @classmethod
    def parse(cls, args: Sequence[str], env: Mapping[str, str] = os.environ) -> "SubmitArgs":
        """The options that `--help` lists are for the job; `key=value` is always a setting of the recipe."""
        options, rest = split_options(args, ["site"])
        single: list[str] = []
        repeated: list[tuple[str, str]] = []
        stage_gpus: dict[str, int] = {}
        training: list[str] = []
        for each in split_args(rest, _takes):
            option = _job_option(each.name) if each.is_option else None
            if option is None:
                training += each.args
            elif option.kind == "single":
                single += each.args
            elif option.kind == "repeated":
                repeated.append((REPEATED[each.name], _value(each)))
            else:
                stage_gpus[each.name.removeprefix(_STAGE_GPUS)] = _number(each.name, _value(each))
        base = {"site": _site_file(options.get("site") or env.get(SITE_VARIABLE))}
        job = override(Job, base, aliases=SITE_ALIASES, args=single)
        return cls(replace(job, site=_extended_site(job.site, repeated)), stage_gpus, training)


@dataclass(frozen=True)
class _JobOption:
    """An option of the job."""

    kind: Literal["single", "repeated", "stage"]
    flag: bool = False


def _job_option(name: str) -> _JobOption | None:
    """The kind of the option of this name; None: it belongs to training."""
    paths = paths_of(Job)
    path = SITE_ALIASES.get(name, name)
    positive = path.removeprefix("no_")
    if path in paths or (positive in paths and is_flag(paths[positive])):
        return _JobOption("single", flag=path not in paths or is_flag(paths[path]))
    if name in REPEATED:
        return _JobOption("repeated")
    return _JobOption("stage") if name.startswith(_STAGE_GPUS) else None


def _takes(key: str, following: str) -> bool:
    option = _job_option(key.replace("-", "_"))
    return not (option is not None and option.flag) and takes_any(key, following)


def _value(given: Argument) -> str:
    if given.value is None:
        raise UserError(f"--{given.key} needs a value; write --{given.key}=VALUE.")
    return given.value


def _number(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--{name.replace('_', '-')} must be a whole number of at least 1, not {text!r}")
    return int(text)


def _extended_site(site: Site, repeated: Sequence[tuple[str, str]]) -> Site:
    """The site with the values of the repeated options added."""
    for field, value in repeated:
        if field == "env":
            name, equals, text = value.partition("=")
            if not equals:
                raise UserError(f"--env {value} sets nothing; write --env NAME=VALUE")
            site = replace(site, env={**site.env, name: text})
        else:
            longer: Any = {field: (*getattr(site, field), value)}
            site = replace(site, **longer)
    return site


def _site_file(text: str | None) -> Mapping[str, Any]:
    """The settings of a site that ships with the package, or of a file."""
    if text is None:
        return {}
    known = group_options("site")
    if text not in known and not text.endswith(".yaml"):
        raise UserError(f"there is no site {text!r}; choose {listed(known, 'or')}, or name a file that ends in .yaml")
    source = find_config_file(PACKAGE_CONF / "site" / f"{text}.yaml" if text in known else Path(text), None, None)
    assert source is not None
    return load_config_file(source, {}, search_path(source)).data


def options_text() -> str:
    """Every option with its meaning, for `--help`."""
    repeated = {f"site.{field}": name for name, field in REPEATED.items()}
    short = {path: name for name, path in SITE_ALIASES.items()} | repeated
    sites = listed(group_options("site"), "or")
    lines = [("--site", f"A cluster: {sites}, or a file; by default the one in {SITE_VARIABLE}.")]
    for field in fields_of(Job):
        name = short.get(field.path, field.path)
        note = " (may be given several times)" if name in REPEATED else ""
        default = f" ({field.default})" if isinstance(field.default, int | str) and field.default is not False else ""
        default = f"; --no-{name} turns it off" if field.default is True else default
        lines.append((f"--{name.replace('_', '-')}", field.doc.rstrip(".") + default + note))
    return "\n".join(
        textwrap.fill(meaning, 118, initial_indent=f"{option:24}", subsequent_indent=" " * 24)
        for option, meaning in lines
    )
