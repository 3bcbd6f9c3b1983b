"""`samestep verify RECIPE`: the proof that a recipe is the same run at any world size and after a kill."""

import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.cli.args import RecipeArgs
from samestep.core.config import dump
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, UserError
from samestep.train.recipe import Recipe
from samestep.train.recipe_registry import recipe_path
from samestep.verify.proof import Proof
from samestep.verify.report import ProofTable
from samestep.verify.runner import PRESET, ProofRunner, proof_settings
from samestep.verify.tolerance import CheckResult, ProofStatus

HELP = """samestep verify RECIPE [--kill-seed N] [--timeout SECONDS] [--keep FOLDER] [key=value | --key value ...]

Runs the recipe's preset `verify` in float64 on the CPU: at 1, 2 and 3 ranks, with other micro-batches, killed with
`kill -9` at a random moment and resumed at the same and at another number of ranks; and compares what the runtime
recorded. How much rounding may change is measured, by a run of the same batches in another order and scale.
RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).
A recipe that can do several things has a preset for each (`verify`, `verify-sft`, ...), and all of them are proved.

--preset      proves this one alone
--kill-seed   repeats the choice of moments of an earlier call
--timeout     seconds that a rank waits for another before it gives up (15)
--keep        keeps all runs in this folder; without it they are kept only when a check does not hold"""


def run(words: Sequence[str]) -> int:
    """Verify; exit code 0 when every check holds, 1 when one fails or proves nothing, 2 user error."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    asked = RecipeArgs.read(words, "verify", extra=("kill-seed", "timeout", "keep"))
    recipe = asked.recipe()
    configs = chosen(asked, recipe)
    seed = _number(asked.options.get("kill-seed"), "kill-seed", secrets.randbelow(1_000_000))
    timeout = _number(asked.options.get("timeout"), "timeout", 15)
    folder = _folder(asked.options.get("keep"))
    keep = "keep" in asked.options
    checks: list[CheckResult] = []
    try:
        for preset, config in configs.items():
            further = [] if preset == PRESET else [preset]
            place = folder.joinpath(*further)
            settings = proof_settings(dump(config), recipe.presets.get(preset, {}), place, timeout)
            lab = ProofRunner(recipe_path(asked.name), settings, place, _modules(recipe))
            checks += _proved(lab, recipe, " ".join([asked.name, *further]), seed)
        keep = keep or bool(_count(checks, ProofStatus.FAILED) + _count(checks, ProofStatus.UNVERIFIABLE))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        print(f"the runs are kept in {folder}")
    return summary(checks)


def chosen(asked: RecipeArgs, recipe: Recipe) -> dict[str, Any]:
    """What to prove, by preset: all that are named for it, or the one that the line names."""
    presets = [name for name in recipe.presets if name == PRESET or name.startswith(f"{PRESET}-")]
    if not presets:
        raise UserError(
            f"the recipe {asked.name} has no preset {PRESET!r}; declare a small one in its presets, such as "
            f"presets={{'{PRESET}': {{'max_steps': 8, 'global_batch_size': 10, 'batch_size': 3}}}}"
        )
    configs = [asked.config(recipe, preset=preset) for preset in presets]
    return {config.preset: config for config in configs}  # the line's own --preset is in each of them


def _proved(lab: ProofRunner, recipe: Recipe, name: str, seed: int) -> list[CheckResult]:
    """All checks of one proof, shown as they are done."""
    with ProofTable(f"samestep verify {name} (kill moments by --kill-seed {seed})") as board:
        for check in Proof(lab, recipe, random.Random(seed), board.show_progress).checks():
            board.add(check)
    return board.checks


def summary(checks: Sequence[CheckResult]) -> int:
    """Print how many checks hold; the exit code."""
    failed, unverifiable = _count(checks, ProofStatus.FAILED), _count(checks, ProofStatus.UNVERIFIABLE)
    done = len(checks) - _count(checks, ProofStatus.NOT_RUN) - _count(checks, ProofStatus.UNKNOWN)
    words = [f"{failed} of {done} checks failed"] if failed else []
    words += [f"{unverifiable} of {done} checks are unverifiable, which is no proof"] if unverifiable else []
    print(", ".join(words) or f"all {done} checks hold")
    return EXIT_FAILURE if words else EXIT_DONE


def _count(checks: Sequence[CheckResult], result: ProofStatus) -> int:
    return sum(check.result is result for check in checks)


def _modules(recipe: Recipe) -> tuple[str, ...]:
    """The modules that define a recipe and those it uses, for workers to find imported: a file's own has no name that
    could be imported."""
    home = sys.modules[recipe.config.__module__]
    used = (getattr(value, "__module__", None) for value in vars(home).values())
    modules = (home.__name__, getattr(recipe.stages, "__module__", None), *used)
    return tuple(sorted({name for name in modules if isinstance(name, str)}))


def _folder(keep: str | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="samestep-verify-"))
    folder = Path(keep).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"the folder {folder} is not empty; give --keep a new one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or not int(text):
        raise UserError(f"--{name} must be a whole number of at least 1, not {text!r}")
    return int(text)
