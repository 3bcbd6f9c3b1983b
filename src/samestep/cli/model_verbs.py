"""The verbs that a recipe's own functions do with a trained model: `sample` and `evaluate`.

The recipe gives a function and a dataclass (`Verb` in train/api/recipe.py): the fields of the dataclass are flags here.
Whatever is needed of torch is imported inside functions, so that `--help` answers at once.
"""

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.cli.help import HELP_FLAGS, asks_for_help
from samestep.core.config import (
    MISSING,
    fields_of,
    listed,
    paths_of,
    split_options,
)
from samestep.core.errors import EXIT_DONE, UserError, print_error
from samestep.core.output import print_text
from samestep.core.paths import check_new_file
from samestep.models.hub_download import hub_model
from samestep.train.record.run_record import run_path

if TYPE_CHECKING:
    from samestep.train.api.recipe import Recipe, Verb
    from samestep.train.trained.trained_model import Trained
    from samestep.world.world import World

GENERAL = {
    "which": "of a run: last, best (by the metric of its stage), or the number of a step (last)",
    "stage": "of a run: the stage whose checkpoint is meant (the last one)",
    "learner": "of several learners: the one that is meant (model, or the only one)",
    "recipe": "the recipe (a name, an import path or a file), where the model does not name it, where it has moved, or "
    "where it neither ships with samestep nor was started by you before",
    "device": "auto, cpu, cuda, cuda:N or xpu (auto)",
}
"""Options that these verbs have with every recipe."""
VALIDATION = "validation"
"""The switch of `evaluate` for the metrics of a stage's validation; so are those of a recipe without that verb."""


@dataclass(frozen=True)
class ModelVerb:
    """One of these verbs, whatever the recipe."""

    name: str
    """Its name, which is that of the recipe's field."""
    about: str
    """What it does."""
    out: str
    """What --out does."""
    show: Callable[[Any], None]
    """Prints the result, unless the recipe does."""
    write: "Callable[[Path, Trained, Any, Any], None]"
    """Writes the result to a file: (file, trained, options of the recipe, result)."""
    switches: Mapping[str, str]
    """Further options without a value: name to meaning."""

    @property
    def options(self) -> dict[str, str]:
        return {**GENERAL, "out": self.out, **self.switches}

    def split(self, args: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """These options, and the remaining args."""
        return split_options(args, [name for name in self.options if name not in self.switches], list(self.switches))


def run(verb: ModelVerb, args: Sequence[str]) -> int:
    """Do it; exit code 2 when one rank or all of them cannot."""
    if not args or asks_for_help(args):
        print_text(_help(verb, args))
        return EXIT_DONE
    if args[0].startswith("-"):
        raise UserError(f"samestep {verb.name} needs a run, a checkpoint or a model folder first, not {args[0]}.")
    from samestep.world.failures import PeerFailed

    try:
        return _use(verb, args[0], args[1:])
    except PeerFailed as failure:
        print_error(str(failure))
        return failure.exit_code


def _use(verb: ModelVerb, source: str, args: Sequence[str]) -> int:
    from samestep.train.trained.trained_model import find_published
    from samestep.world.world import World

    world = World.rendezvous()
    with world.together("opening the model"):
        general, rest = verb.split(args)
        out = _out(general.get("out"))
        is_of_hub = _is_of_hub(source, world)
        if not is_of_hub:
            trained, own, options = _open(verb, source, general, rest, world)
    world.connect(general.get("device", "auto"))
    if is_of_hub:  # all ranks take part in a download
        with world.together("opening the model"):
            folder = find_published(source, general.get("recipe"), world)
            trained, own, options = _open(verb, str(folder), general, rest, world)
    with world.together(f"samestep {verb.name}"):
        result = own.run(trained, options, world)
    if world.is_main:
        (partial(own.show, trained) if own.show else verb.show)(result)
        if out is not None:
            verb.write(out, trained, options, result)
    world.leave()
    return EXIT_DONE


def _is_of_hub(source: str, world: "World") -> bool:
    """Whether rank 0 finds nothing on its disk by the name of a model of the Hub."""
    found = world.is_main and hub_model(run_path(source, "runs")) is not None
    return bool(world.share_through_store("model of the Hub", found))


def _open(
    verb: ModelVerb, source: str, general: Mapping[str, str], args: Sequence[str], world: "World"
) -> "tuple[Trained, Verb, Any]":
    """The model with its settings, the recipe's verb, and its options, which are checked before weights are read."""
    from samestep.train.session.start import require_same_start
    from samestep.train.trained.trained_model import recipe_of
    from samestep.train.trained.verb_options import read_options

    name, recipe = recipe_of(source, general.get("recipe"))
    given = {option: text for option, text in general.items() if option != "recipe"}
    require_same_start(world, name, [given, *args])
    own = _verb_of(verb, name, recipe, validates=VALIDATION in general)
    options, change = read_options(own, recipe, _name_second(args, verb, own, name))
    trained = _open_on_all_ranks(source, general, world)
    return replace(trained, config=change(trained.config)), own, options


def _open_on_all_ranks(source: str, general: Mapping[str, str], world: "World") -> "Trained":
    """The model that rank 0 chooses: a run that is still training may save another checkpoint at any moment. From rank
    0 the others take only the name of a checkpoint, inside of the folder that they were given themselves."""
    from samestep.train.trained.trained_model import model_path, open_trained

    learner, recipe = general.get("learner"), general.get("recipe")
    path = model_path(source, recipe)
    if world.is_main:
        which, stage = general.get("which", "last"), general.get("stage")
        trained = open_trained(source, which, learner=learner, stage=stage, recipe=recipe)
        world.share_through_store("checkpoint", os.path.relpath(trained.source, path))
        return trained
    chosen = path / world.share_through_store("checkpoint", None)
    if not chosen.resolve().is_relative_to(path.resolve()):
        raise UserError(f"rank 0 opened {chosen}, which is not in {path}; give all ranks the same model")
    return replace(open_trained(str(chosen), learner=learner, recipe=recipe), verified=True)


def _verb_of(verb: ModelVerb, name: str, recipe: "Recipe", *, validates: bool = False) -> "Verb":
    from samestep.train.api.recipe import Verb
    from samestep.train.api.recipe_registry import find_recipe, known_recipes

    found = getattr(recipe, verb.name)
    if VALIDATION in verb.switches and (validates or found is None):
        from samestep.train.session.validate_trained import VALIDATE

        return VALIDATE
    if not isinstance(found, Verb):
        others = [known for known in known_recipes() if getattr(find_recipe(known), verb.name)]
        have = f" (as {listed(others)} {'has' if len(others) == 1 else 'have'})" if others else ""
        raise UserError(f"the recipe {name!r} has no `{verb.name}`; give it one, a Verb(...){have}")
    taken = sorted(paths_of(found.options).keys() & verb.options.keys())
    if taken:
        raise UserError(f"--{taken[0]} is an option of samestep itself; rename it in the options of recipe {name!r}")
    return found


def _name_second(args: Sequence[str], verb: ModelVerb, own: "Verb", recipe: str) -> list[str]:
    """The args, with a second model as the option that it stands for."""
    if not args or args[0].startswith("-") or ("=" in args[0] and not Path(args[0]).exists()):
        return list(args)
    if own.second is None:
        raise UserError(f"samestep {verb.name} takes one model of recipe {recipe!r}; leave out {args[0]}")
    return [f"--{own.second}={args[0]}", *args[1:]]


def _out(text: str | None) -> Path | None:
    if text is not None:
        check_new_file("--out", Path(text))
    return None if text is None else Path(text)


# --help


def _help(verb: ModelVerb, args: Sequence[str]) -> str:
    """In general, or with the options of the recipe that the first arg names: a recipe, or a model of one."""
    usage = f"samestep {verb.name} MODEL [options] [settings, such as --batch_size 32]"
    if not args or args[0].startswith("-"):
        own = [
            f"`samestep {verb.name} MODEL --help` and `samestep {verb.name} RECIPE --help` list the recipe's options."
        ]
    else:
        general, _ = verb.split([arg for arg in args if arg not in HELP_FLAGS])
        try:
            own = _recipe_help(verb, *_recipe_for_help(args[0], general.get("recipe")))
        except UserError as error:
            if args[0].endswith(".py") or Path(args[0]).exists():
                raise
            own = [f"The options of its recipe are not known: {error}."]
    shared = [_line(f"--{name}", meaning) for name, meaning in verb.options.items()]
    return "\n".join([usage, "", verb.about, "", *shared, "", *own])


def _recipe_for_help(text: str, given: str | None) -> "tuple[str, Recipe]":
    from samestep.train.api.recipe_registry import find_recipe, known_recipes
    from samestep.train.trained.trained_model import recipe_of

    if given is None and (text in known_recipes() or text.endswith(".py")):
        return text, find_recipe(text)
    try:
        return recipe_of(text, given)
    except UserError as error:
        if Path(text).exists():  # a folder of models that was unpacked here could be imported by its name
            raise
        try:
            return text, find_recipe(text)
        except UserError:
            raise error from None


def _recipe_help(verb: ModelVerb, name: str, recipe: "Recipe") -> list[str]:
    own = _verb_of(verb, name, recipe)
    lines = [f"options of {name}: {' '.join((own.options.__doc__ or '').split())}"]
    if own.second is not None:
        lines.append(f"A second model right after the first is --{own.second}.")
    for field in fields_of(own.options):
        shown = "" if field.default in (None, False, "", MISSING) else f" ({field.default})"
        lines.append(_line(f"--{field.path}", field.doc.rstrip(".") + shown))
    meanings = {field.path: field.doc for field in fields_of(recipe.config)}
    if own.aliases:
        lines += ["", "settings with a short name here:"]
    for short, path in own.aliases.items():
        full = path if isinstance(path, str) else path.path
        lines.append(_line(f"--{short}", f"{meanings.get(full, '').rstrip('.')} ({full})"))
    return lines


def _line(option: str, meaning: str) -> str:
    return textwrap.fill(meaning, 118, initial_indent=f"{option:15} ", subsequent_indent=" " * 16)
