"""The arguments of the verbs: a run, a model, a recipe with its settings, or a job for a scheduler."""

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.core.config import changed, dump, files
from samestep.core.config.command_line import take
from samestep.core.config.merging import amend, compose
from samestep.core.config.schema import fields_of, is_flag, listed, paths_of
from samestep.core.errors import EXIT_DONE, UserError, complain
from samestep.core.rundir import RunDir
from samestep.launch.schedulers.job import SITE_ALIASES, SITE_VARIABLE, Job, Site
from samestep.train.recipe import Recipe
from samestep.train.recipe_registry import find_recipe, known_recipes, recipe_path
from samestep.train.run_record import RunRecord, find_run, with_run_path


def one_run(words: Sequence[str], verb: str, flag: str) -> tuple[str, bool]:
    """The run that was named, and whether the flag was given."""
    names = [word for word in words if not word.startswith("-")]
    unknown = [word for word in words if word.startswith("-") and word != flag]
    if unknown or len(names) != 1:
        what = f"there is no option {unknown[0]}" if unknown else f"one run is expected, not {len(names)}"
        raise UserError(f"{what}; the command is: samestep {verb} RUN [{flag}]")
    return names[0], flag in words


def use_model(verb: str, words: Sequence[str], help_text: str, use: Callable[[str, Sequence[str]], int]) -> int:
    """Call `use` with the model and the other words; the exit code of the rank that failed first, when one did."""
    if not words or "-h" in words or "--help" in words:
        print(help_text)
        return EXIT_DONE
    if words[0].startswith("-"):
        raise UserError(f"samestep {verb} needs a run, a checkpoint or a model folder first, not {words[0]}.")
    from samestep.world.world import PeerFailed

    try:
        return use(words[0], words[1:])
    except PeerFailed as failure:
        complain(str(failure))
        return failure.exit_code


COMMON = {"log_level": "log.level", "quiet": "log.quiet"}
"""Flags that every recipe understands beside its own."""
OPTIONS = ("config", "config-path", "config-name")


@dataclass(frozen=True)
class RecipeArgs:
    """A recipe's name and what was said about its settings."""

    name: str
    options: dict[str, str]
    settings: list[str]

    @classmethod
    def read(cls, words: Sequence[str], verb: str, extra: Sequence[str] = ()) -> "RecipeArgs":
        """Take a command line apart; the recipe is its first word."""
        options, rest = take(words, [*OPTIONS, *extra])
        if not rest or rest[0].startswith("-") or "=" in rest[0]:
            raise UserError(f"samestep {verb} needs a recipe first, one of: {', '.join(known_recipes())}")
        return cls(rest[0], options, rest[1:])

    def recipe(self) -> Recipe:
        """The recipe that was named."""
        return find_recipe(self.name)

    def config(self, recipe: Recipe, preset: str | None = None) -> Any:
        """Its configuration: default < preset < file < command line; then what follows from data or another model."""
        paths = {name: Path(self.options[name]) for name in ("config", "config-path") if name in self.options}
        config = compose(
            recipe.config,
            presets=recipe.presets,
            aliases={**COMMON, **recipe.aliases},
            preset=preset,
            config=paths.get("config"),
            config_path=paths.get("config-path"),
            config_name=self.options.get("config-name"),
            words=self.settings,
        )
        config = with_run_path(config)
        return recipe.resolve(config) if recipe.resolve else config


def amended(recipe: Recipe, data: Mapping[str, Any], words: Sequence[str]) -> Any:
    """A run's own configuration with what the words change."""
    return amend(recipe.config, data, aliases={**COMMON, **recipe.aliases}, words=words)


def chosen(words: Sequence[str]) -> tuple[str, Recipe, Any]:
    """The recipe's name, the recipe, and the configuration."""
    options, rest = take(words, ["resume"])
    if "resume" not in options:
        return _fresh(words)
    source = options["resume"]
    if Path(source).is_file():  # a plain weight file knows no recipe: it is where a new run begins
        return _fresh([*rest, f"--continue_from={source}"])
    rundir = find_run(source)
    record = RunRecord.read(rundir)
    assert record is not None
    recipe = find_recipe(record.recipe)
    return record.recipe, recipe, _resumed(recipe, record, rundir, rest)


def _fresh(words: Sequence[str]) -> tuple[str, Recipe, Any]:
    asked = RecipeArgs.read(words, "train")
    recipe = asked.recipe()
    return recipe_path(asked.name), recipe, asked.config(recipe)


def _resumed(recipe: Recipe, record: RunRecord, rundir: RunDir, words: Sequence[str]) -> Any:
    """The run's own configuration, with changes only where they do not shape its course."""
    data = {**record.config, "name": rundir.path.name, "out": str(rundir.path.parent)}
    config = amended(recipe, data, words)
    fixed = changed(record.config, dump(config), recipe.config)
    if fixed:
        raise UserError(
            f"{', '.join(fixed)} cannot change when {rundir.path} is resumed, since the run would be another one; "
            f"leave it out, or start a new run with init_from={rundir.path}"
        )
    return config


LISTS = {"directive": "directives", "module": "modules", "setup": "setup", "srun": "srun", "env": "env"}
"""Options that may be given several times, and what of the site they add to."""
_STAGE = "num_gpus_"


@dataclass(frozen=True)
class SubmitArgs:
    """A command line, taken apart."""

    job: Job
    stage_gpus: Mapping[str, int]
    """GPUs of stages that have a number of their own."""
    training: list[str]
    """Words of `samestep train`."""

    @classmethod
    def read(cls, words: Sequence[str], env: Mapping[str, str] = os.environ) -> "SubmitArgs":
        """Options of the job are those that `--help` lists; `key=value` is always a setting of the recipe."""
        options, rest = take(words, ["site"])
        single: list[str] = []
        several: list[tuple[str, str]] = []
        stages: dict[str, int] = {}
        training: list[str] = []
        while rest:
            name, own = _name_of(rest[0])
            if own is None:
                training.append(rest.pop(0))
                continue
            taken = [rest.pop(0)]
            if "=" not in taken[0] and not own.flag and rest and not rest[0].startswith("--"):
                taken.append(rest.pop(0))
            if own.kind == "single":
                single += taken
            elif own.kind == "several":
                several.append((LISTS[name], _value(taken)))
            else:
                stages[name.removeprefix(_STAGE)] = _number(name, _value(taken))
        base = {"site": _site_file(options.get("site") or env.get(SITE_VARIABLE))}
        job = amend(Job, base, aliases=SITE_ALIASES, words=single)
        return cls(replace(job, site=_with(job.site, several)), stages, training)


@dataclass(frozen=True)
class _Own:
    """An option of the job."""

    kind: str
    flag: bool = False


def _name_of(word: str) -> tuple[str, _Own | None]:
    """The name that a word begins an option with, and what is known of it; None: it belongs to training."""
    if not word.startswith("--"):
        return "", None
    name = word[2:].partition("=")[0].replace("-", "_")
    paths = paths_of(Job)
    path = SITE_ALIASES.get(name, name)
    positive = path.removeprefix("no_")
    if path in paths or (positive in paths and is_flag(paths[positive])):
        return name, _Own("single", flag=path not in paths or is_flag(paths[path]))
    if name in LISTS:
        return name, _Own("several")
    return name, _Own("stage") if name.startswith(_STAGE) else None


def _value(taken: Sequence[str]) -> str:
    name, equals, value = taken[0].partition("=")
    if not equals and len(taken) == 1:
        raise UserError(f"{name} needs a value; write {name}=VALUE.")
    return value if equals else taken[1]


def _number(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--{name.replace('_', '-')} must be a whole number of at least 1, not {text!r}")
    return int(text)


def _with(site: Site, several: Sequence[tuple[str, str]]) -> Site:
    """The site with what was given beside its file."""
    for field, value in several:
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
    known = files.options_of("site")
    if text not in known and not text.endswith(".yaml"):
        raise UserError(f"there is no site {text!r}; choose {listed(known, 'or')}, or name a file that ends in .yaml")
    source = files.find(files.PACKAGE_CONF / "site" / f"{text}.yaml" if text in known else Path(text), None, None)
    assert source is not None
    return files.load(source, {}, files.search_path(source)).data


def options_text() -> str:
    """Every option with its meaning, for `--help`."""
    short = {path: name for name, path in SITE_ALIASES.items()} | {
        f"site.{field}": name for name, field in LISTS.items()
    }
    lines = [
        ("--site", f"A cluster: {listed(files.options_of('site'), 'or')}, or a file; else as {SITE_VARIABLE} says.")
    ]
    for field in fields_of(Job):
        name = short.get(field.path, field.path)
        note = " (may be given several times)" if name in LISTS else ""
        default = f" ({field.default})" if isinstance(field.default, int | str) and field.default is not False else ""
        default = f"; --no-{name} turns it off" if field.default is True else default
        lines.append((f"--{name.replace('_', '-')}", field.doc.rstrip(".") + default + note))
    return "\n".join(
        textwrap.fill(meaning, 118, initial_indent=f"{option:24}", subsequent_indent=" " * 24)
        for option, meaning in lines
    )
