"""`samestep new RECIPE FOLDER`: a small project to begin with; `samestep new FOLDER`: one for a recipe of your own.

What it is made of lies in `recipes/RECIPE/project/` and `recipes/project/`. Files there that hold Python end in
`.py.template`, so that nothing can import them.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from samestep.cli.help import asks_for_help
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.near_names import did_you_mean
from samestep.core.output import print_text
from samestep.core.paths import expand_home
from samestep.core.safe_files import temporary_folder

HELP = """samestep new RECIPE FOLDER    a project for a recipe: scripts, settings, a little data, a test and a README
samestep new FOLDER           the same for a recipe of your own

FOLDER must not exist yet, or be empty. Nothing outside of it is changed. Its README says what to type."""
TEMPLATE = ".template"
_RECIPES = Path(__file__).parents[1] / "recipes"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def run(args: Sequence[str]) -> int:
    """Make the project; exit code 0, or 2 for what is refused."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    _, names = split_options(args, [])
    if option := next((name for name in names if name.startswith("-")), None):
        raise UserError(f"there is no option {option}; the command is: samestep new [RECIPE] FOLDER")
    recipe, folder = _parse(names)
    _check_folder(folder)
    files = make_project(recipe, folder)
    quoted = shlex.quote(str(folder))
    print_text(f"made {quoted}: {', '.join(str(file) for file in files)}")
    print_text(f"next: cd {quoted}, and read README.md")
    return EXIT_DONE


def make_project(recipe: str | None, folder: Path) -> list[Path]:
    """Write the project's files, and return their names. It gets its name when all of it is written."""
    source = project_template(recipe)
    with temporary_folder(folder, private=False) as project:
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            target = project / file.relative_to(source)
            target = target.with_name(target.name.removesuffix(TEMPLATE))
            content = file.read_bytes()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if content.startswith(b"#!"):
                target.chmod(target.stat().st_mode | 0o111)
        files = sorted(path.relative_to(project) for path in project.rglob("*") if path.is_file())
        project.rename(folder)  # in place of an empty folder too, and of no other
    return files


def project_template(recipe: str | None) -> Path:
    """The folder that a project is copied from."""
    return _RECIPES / (recipe or "") / "project"


def _parse(names: Sequence[str]) -> tuple[str | None, Path]:
    known = sorted(folder.parent.name for folder in _RECIPES.glob("*/project"))
    if len(names) == 1 and names[0] in known:
        raise UserError(f"name the folder too: samestep new {names[0]} ./my-{names[0]}")
    if len(names) not in (1, 2):
        raise UserError(f"the command is samestep new [RECIPE] FOLDER; it got {len(names)} names")
    recipe = names[0] if len(names) == 2 else None
    if recipe is not None and recipe not in known:
        raise UserError(
            f"there is no recipe {recipe!r}{did_you_mean(recipe, known)}; choose one of {', '.join(known)}, or "
            "leave it out for a recipe of your own"
        )
    return recipe, expand_home(names[-1])


def _check_folder(folder: Path) -> None:
    """Refuse what is there already, and names that scripts and shells would stumble over."""
    name = folder.absolute().name
    if ".." in folder.parts or _NAME.fullmatch(name) is None:
        raise UserError(
            f"name the folder with letters, digits, '_', '-' and '.', and no '-' or '.' at its beginning, instead of "
            f"{str(folder)!r}"
        )
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; name a folder that does not exist yet")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder that does not exist yet")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name a folder that does not exist yet")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"make the folder {folder.absolute().parent} first; it does not exist")
