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
from samestep.cli.help import asks_for_help
from samestep.core.config import dump
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, UserError
from samestep.core.output import print_text
from samestep.train.api.recipe import Recipe
from samestep.train.api.recipe_registry import recipe_path
from samestep.verify.proof import Proof
from samestep.verify.report import ProofTable
from samestep.verify.runner import PRESET, ProofRunner, proof_settings
from samestep.verify.tolerance import CheckResult, ProofStatus

HELP = """samestep verify RECIPE [--kill-seed N] [--timeout SECONDS] [--keep FOLDER] [key=value | --key value ...]

Runs the recipe's preset `verify` in float64 on the CPU: at 1, 2 and 3 ranks, with other micro-batches, killed with
`kill -9` at a random moment and resumed at the same and at another number of ranks; and compares what the runtime
recorded. How much rounding may change is measured, by a run of the same batches in another order and scale.
RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).
A recipe with several kinds of training has a preset for each (`verify`, `verify-sft`, ...); all of them are verified.

--preset      verifies only this preset
--kill-seed   repeats the kill moments of an earlier call
--timeout     seconds that a rank waits for another before it gives up (15)
--keep        keeps all runs in this folder; without it they are kept only when a check does not hold"""


def run(args: Sequence[str]) -> int:
    """Verify; exit code 0 when every check holds, 1 when one fails or proves nothing, 2 user error."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    recipe_args = RecipeArgs.parse(args, "verify", extra=("kill-seed", "timeout", "keep"))
    recipe = recipe_args.recipe()
    configs = verify_configs(recipe_args, recipe)
    seed = _number(recipe_args.options.get("kill-seed"), "kill-seed", secrets.randbelow(1_000_000))
    timeout = _number(recipe_args.options.get("timeout"), "timeout", 15)
    folder = _folder(recipe_args.options.get("keep"))
    keep = "keep" in recipe_args.options
    checks: list[CheckResult] = []
    try:
        for preset, config in configs.items():
            further = [] if preset == PRESET else [preset]
            run_folder = folder.joinpath(*further)
            settings = proof_settings(dump(config), recipe.presets.get(preset, {}), run_folder, timeout)
            runner = ProofRunner(recipe_path(recipe_args.name), settings, run_folder, _modules(recipe))
            checks += _run_proof(runner, recipe, " ".join([recipe_args.name, *further]), seed)
        keep = keep or bool(_count(checks, ProofStatus.FAILED) + _count(checks, ProofStatus.UNVERIFIABLE))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        print_text(f"the runs are kept in {folder}")
    return summary(checks)


def verify_configs(recipe_args: RecipeArgs, recipe: Recipe) -> dict[str, Any]:
    """The configs to verify, by preset: all `verify` presets, or the one that the command line names."""
    presets = verify_presets(recipe)
    if not presets:
        raise UserError(
            f"the recipe {recipe_args.name} has no preset {PRESET!r}; declare a small one in its presets, such as "
            f"presets={{'{PRESET}': {{'max_steps': 8, 'global_batch_size': 10, 'batch_size': 3}}}}"
        )
    configs = [recipe_args.config(recipe, preset=preset) for preset in presets]
    return {config.preset: config for config in configs}  # --preset on the command line replaces each of them


def verify_presets(recipe: Recipe) -> list[str]:
    return [name for name in recipe.presets if name == PRESET or name.startswith(f"{PRESET}-")]


def _run_proof(runner: ProofRunner, recipe: Recipe, name: str, seed: int) -> list[CheckResult]:
    """All checks of one proof, printed as they finish."""
    with ProofTable(f"samestep verify {name} (kill moments by --kill-seed {seed})") as board:
        for check in Proof(runner, recipe, random.Random(seed), board.show_progress).checks():
            board.add(check)
    return board.checks


def summary(checks: Sequence[CheckResult]) -> int:
    """Print how many checks hold; the exit code."""
    failed, unverifiable = _count(checks, ProofStatus.FAILED), _count(checks, ProofStatus.UNVERIFIABLE)
    done = len(checks) - _count(checks, ProofStatus.NOT_RUN) - _count(checks, ProofStatus.UNKNOWN)
    problems = [f"{failed} of {done} checks failed"] if failed else []
    problems += [f"{unverifiable} of {done} checks are unverifiable, so this is not a proof"] if unverifiable else []
    print_text(", ".join(problems) or f"all {done} checks hold")
    return EXIT_FAILURE if problems else EXIT_DONE


def _count(checks: Sequence[CheckResult], result: ProofStatus) -> int:
    return sum(check.result is result for check in checks)


def _modules(recipe: Recipe) -> tuple[str, ...]:
    """The modules that define a recipe and those it uses, which workers must preload: a recipe in a file has no
    importable module name."""
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
