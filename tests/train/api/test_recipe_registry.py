"""A path names that file and no other; anything else is a recipe's name or an import path."""

import sys
from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.train.api.recipe_registry import find_recipe, known_recipes

TEXT = '''"""A recipe."""
from dataclasses import dataclass

from beside import WORD
from samestep import Config, Recipe


@dataclass(frozen=True)
class Own(Config):
    """{name}"""


recipe = Recipe(Own, lambda config: [], presets={{WORD: {{}}}})
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("WORD = 'helper'")
    (tmp_path / "sub").mkdir()
    for place in ("exp.py", "sub/exp.py", "mdlm.py"):
        (tmp_path / place).write_text(TEXT.format(name=place))
    return tmp_path


def about(name: str) -> str:
    return (find_recipe(name).config.__doc__ or "").strip()


def test_a_file_is_that_file(folder: Path) -> None:
    assert about("exp.py") == "exp.py"
    assert about("sub/exp.py") == "sub/exp.py"
    assert about("./exp.py") == "exp.py"
    assert about(str(folder / "sub" / "exp.py")) == "sub/exp.py"
    assert find_recipe("exp.py") is find_recipe("./exp.py")


def test_a_file_may_be_called_like_a_shipped_recipe(folder: Path) -> None:
    assert "mdlm" in known_recipes()
    assert about("./mdlm.py") == about("mdlm.py") == "mdlm.py"
    assert about("mdlm") != "mdlm.py"


def test_what_lies_beside_a_file_can_be_imported(folder: Path) -> None:
    assert list(find_recipe("exp.py").presets) == ["helper"]


def test_a_file_that_fails_is_not_remembered(folder: Path) -> None:
    broken = folder / "broken.py"
    broken.write_text("raise RuntimeError('no')")
    with pytest.raises(RuntimeError, match="no"):
        find_recipe("broken.py")
    broken.write_text(TEXT.format(name="mended"))
    assert about("broken.py") == "mended"


def test_what_is_no_recipe_is_refused(folder: Path) -> None:
    (folder / "empty.py").write_text("")
    with pytest.raises(UserError, match=r"the file empty.py has no `recipe = Recipe\(\.\.\.\)`"):
        find_recipe("empty.py")
    with pytest.raises(UserError, match=r"the recipe file .*none\.py does not exist"):
        find_recipe("none.py")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("mine = Recipe(Config, list)", "the file x.py calls its recipe 'mine'; call it `recipe`"),
        (
            "one, two = Recipe(Config, list), Recipe(Config, list)",
            "the file x.py has several recipes (one, two); call the one to train `recipe`, or give each a file",
        ),
        ("recipe = Recipe", "`recipe` in the file x.py must be a Recipe(...), but is the class Recipe"),
        ("recipe = [1]", "`recipe` in the file x.py must be a Recipe(...), but is a list"),
        ("def recipe(:", "x.py, line 2, is no Python: invalid syntax"),
        ("import no_such_thing", "x.py needs the module 'no_such_thing', which is not there"),
    ],
)
def test_a_file_without_one_recipe_is_refused_with_what_to_write(folder: Path, source: str, sentence: str) -> None:
    (folder / "x.py").write_text(f"from samestep import Config, Recipe\n{source}")
    with pytest.raises(UserError) as refused:
        find_recipe("x.py")
    assert sentence in str(refused.value)


def test_what_lies_beside_a_link_to_a_recipe_is_not_imported(folder: Path) -> None:
    """A folder from elsewhere could hold a link to a recipe of the user's, and modules with the names that it needs."""
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "beside.py").write_text("WORD = 'planted'")
    (folder / "elsewhere" / "exp.py").symlink_to(folder / "exp.py")
    assert list(find_recipe("elsewhere/exp.py").presets) == ["helper"]
    assert str(folder / "elsewhere") not in sys.path
