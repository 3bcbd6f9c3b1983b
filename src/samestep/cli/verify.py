"""`samestep verify RECIPE`: the proof that a recipe is the same run at any world size and after a kill."""

import random
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.recipe_words import RecipeWords
from samestep.core.config import dump
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, UserError
from samestep.doctor.lab import Lab
from samestep.doctor.proof import Proof
from samestep.doctor.settings import PRESET, proof_settings
from samestep.doctor.table import Board
from samestep.train.recipe import Recipe

HELP = """samestep verify RECIPE [--kill-seed N] [--timeout SECONDS] [--keep FOLDER] [key=value | --key value ...]

Runs the recipe's preset `verify` in float64 on the CPU: at 1, 2 and 3 ranks, with other micro-batches, killed with
`kill -9` at a random moment and resumed at the same and at another number of ranks; and compares what the runtime
recorded. RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).

--kill-seed   repeats the choice of moments of an earlier call
--timeout     seconds that a rank waits for another before it gives up (15)
--keep        keeps all runs in this folder; without it they are kept only when a check fails"""


def run(words: Sequence[str]) -> int:
    """Verify; exit code 0 when every check holds, 1 when one does not, 2 user error."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    asked = RecipeWords.read(words, "verify", extra=("kill-seed", "timeout", "keep"))
    recipe = asked.recipe()
    if PRESET not in recipe.presets:
        raise UserError(
            f"the recipe {asked.name} has no preset {PRESET!r}; declare a small one in its presets, such as "
            f"presets={{'{PRESET}': {{'max_steps': 8, 'global_batch_size': 10, 'batch_size': 3}}}}"
        )
    config = asked.config(recipe, preset=PRESET)
    seed = _number(asked.options.get("kill-seed"), "kill-seed", secrets.randbelow(1_000_000))
    timeout = _number(asked.options.get("timeout"), "timeout", 15)
    folder = _folder(asked.options.get("keep"))
    settings = proof_settings(dump(config), recipe.presets[PRESET], folder, timeout)
    lab = Lab(_everywhere(asked.name), settings, folder, _modules(recipe))
    keep = "keep" in asked.options
    try:
        with Board(f"samestep verify {asked.name} (kill moments by --kill-seed {seed})") as board:
            for check in Proof(lab, recipe, random.Random(seed), board.say).checks():
                board.add(check)
        failed = [check for check in board.checks if check.passed is False]
        keep = keep or bool(failed)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        print(f"the runs are kept in {folder}")
    done = [check for check in board.checks if check.passed is not None]
    print(f"{len(failed)} of {len(done)} checks failed" if failed else f"all {len(done)} checks hold")
    return EXIT_FAILURE if failed else EXIT_DONE


def _everywhere(name: str) -> str:
    """A recipe file by its whole path: workers may have another working directory."""
    return str(Path(name).absolute()) if name.endswith(".py") else name


def _modules(recipe: Recipe) -> tuple[str, ...]:
    """The modules that define a recipe, for workers to find imported."""
    modules = (recipe.config.__module__, getattr(recipe.stages, "__module__", None))
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
