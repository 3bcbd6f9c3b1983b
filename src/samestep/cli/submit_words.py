"""What the words of `samestep submit` mean: what the job asks for, and what is left for `samestep train`."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.core import compose_files as files
from samestep.core.compose import amend
from samestep.core.config_fields import fields_of, paths_of
from samestep.core.config_types import is_flag, listed
from samestep.core.errors import UserError
from samestep.core.overrides import take
from samestep.launch.site import SHORT, VARIABLE, Job, Site

LISTS = {"directive": "directives", "module": "modules", "setup": "setup", "srun": "srun", "env": "env"}
"""Options that may be given several times, and what of the site they add to."""
_STAGE = "num_gpus_"


@dataclass(frozen=True)
class SubmitWords:
    """A command line, taken apart."""

    job: Job
    stage_gpus: Mapping[str, int]
    """GPUs of stages that have a number of their own."""
    training: list[str]
    """Words of `samestep train`."""

    @classmethod
    def read(cls, words: Sequence[str], env: Mapping[str, str] = os.environ) -> "SubmitWords":
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
        base = {"site": _site_file(options.get("site") or env.get(VARIABLE))}
        job = amend(Job, base, aliases=SHORT, words=single)
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
    path = SHORT.get(name, name)
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
    short = {path: name for name, path in SHORT.items()} | {f"site.{field}": name for name, field in LISTS.items()}
    lines = [("--site", f"A cluster: {listed(files.options_of('site'), 'or')}, or a file; else as {VARIABLE} says.")]
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
