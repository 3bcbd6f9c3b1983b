"""`samestep completion bash|zsh|fish`: a script with which the shell completes verbs, recipes, settings and runs.

Pressing Tab starts no Python: the names of settings and presets are written into the script, and runs are the folders
in `runs/`. Recipes of one's own are files, which the shell completes by itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from samestep.cli.help import asks_for_help
from samestep.cli.main import OTHER_NAMES, VERBS
from samestep.core.config import fields_of
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import print_text

SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/samestep",
    "zsh": "~/.zsh_samestep      # and in ~/.zshrc: source ~/.zsh_samestep",
    "fish": "~/.config/fish/completions/samestep.fish",
}
HELP = "\n".join(
    [
        "samestep completion bash|zsh|fish",
        "",
        "Prints a script with which the shell completes verbs, recipes, their settings, and the names of runs. Write",
        "it where the shell looks, and again after an update, which may have other settings:",
        "",
        *(f"  samestep completion {shell} > {place}" for shell, place in SHELLS.items()),
    ]
)
OF_RECIPES = ("train", "submit", "verify", "config", "new")
OF_RUNS = ("sample", "evaluate", "export", "checkpoints", "why", "watch", "report", *OTHER_NAMES)
OPTIONS = ("preset", "nproc", "config", "config-path", "config-name", "resume")
"""Of `train`, beside settings."""


class Known(NamedTuple):
    """What can be completed after the name of a recipe."""

    settings: Sequence[str]
    presets: Sequence[str]


def run(args: Sequence[str]) -> int:
    """Print the script."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    if len(args) != 1 or args[0] not in SHELLS:
        raise UserError(f"name one shell: samestep completion {'|'.join(SHELLS)}")
    print_text(script(args[0], known_names()))
    return EXIT_DONE


def known_names() -> dict[str, Known]:
    """By recipe, what its settings and presets are called."""
    from samestep.train.api.recipe_registry import find_recipe, known_recipes

    recipes = {name: find_recipe(name) for name in known_recipes()}
    return {
        name: Known(
            sorted({*(field.path for field in fields_of(recipe.config)), *recipe.all_aliases}),
            sorted(recipe.presets),
        )
        for name, recipe in recipes.items()
    }


def script(shell: str, known: Mapping[str, Known]) -> str:
    """The script for a shell."""
    if shell == "fish":
        return _fish(known)
    text = Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
    cases = [
        f"{name}) settings='{_flags(found.settings)}' presets='{' '.join(found.presets)}' ;;"
        for name, found in known.items()
    ]
    words = {
        "VERBS": " ".join([*VERBS, *OTHER_NAMES]),
        "OF_RECIPES": "|".join(OF_RECIPES),
        "OF_RUNS": "|".join(OF_RUNS),
        "RECIPES": " ".join(known),
        "OPTIONS": _flags(OPTIONS),
        "CASES": "\n        ".join(cases),
    }
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + text.rstrip("\n")


def _flags(names: Sequence[str]) -> str:
    return " ".join(f"--{name}" for name in names)


def _fish(known: Mapping[str, Known]) -> str:
    said = "__fish_seen_subcommand_from"
    runs = "(for run in runs/*/; basename $run; end)"
    recipes = " ".join(known)
    lines = [
        f"complete -c samestep -f -n 'not {said} {' '.join([*VERBS, *OTHER_NAMES])}' -a {verb} -d '{_quoted(meaning)}'"
        for verb, meaning in VERBS.items()
    ]
    wanted = f"{said} {' '.join(OF_RECIPES)}; and not {said} {recipes}"
    lines += [f"complete -c samestep -n '{wanted}' -a '{recipes}'"]
    lines += [f"complete -c samestep -n '{said} {' '.join(OF_RUNS)}' -a '{runs}'"]
    lines += [f"complete -c samestep -n '{said} train' -l resume -x -a '{runs}'"]
    for name, found in known.items():
        seen = f"-n '{said} {name}'"
        lines += [f"complete -c samestep {seen} -l preset -x -a '{' '.join(found.presets)}'"]
        lines += [f"complete -c samestep {seen} -l {setting}" for setting in found.settings if setting != "preset"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
