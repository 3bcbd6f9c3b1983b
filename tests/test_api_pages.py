"""docs/reference/api has every public name, as the source says it: `scripts/make-api-pages` writes it."""

import ast
import inspect
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import samestep

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference" / "api"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    scripts = ROOT / "scripts"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(scripts)
        patch.setattr(sys, "dont_write_bytecode", True)
        loader = SourceFileLoader("make_api_pages", str(scripts / "make-api-pages"))
        spec = spec_from_loader("make_api_pages", loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
    return module


def test_the_pages_say_what_the_docstrings_say(writer: ModuleType) -> None:
    written = {path.name: path.read_text() for path in PAGES.iterdir()}
    assert written == writer.pages(), "run scripts/make-api-pages"


def test_every_public_name_is_on_one_page(writer: ModuleType) -> None:
    listed = [name for _, _, names in writer.GROUPS.values() for name in names.split()]
    assert sorted(listed) == sorted(samestep.__all__)


def test_signatures_are_those_of_the_functions(writer: ModuleType) -> None:
    """What is read from the source has the arguments that Python itself finds."""
    for name in samestep.__all__:
        thing, found = getattr(samestep, name), writer.public_names.find(name, "samestep")
        if name in writer.GIVEN:
            continue
        if inspect.isfunction(thing):
            given = ", ".join(writer.public_names.arguments(found.node))
            (read,) = ast.parse(f"def {name}({given}): ...").body
            arguments = inspect.signature(thing).parameters
        elif isinstance(found.node, ast.ClassDef) and not found.is_protocol and not found.is_exception:
            given, _ = writer.public_names.constructor(found)
            (read,) = ast.parse(f"def {name}({', '.join(given)}): ...").body
            arguments = inspect.signature(thing).parameters
        else:
            continue
        parts = [read.args.posonlyargs, read.args.args, [read.args.vararg], read.args.kwonlyargs, [read.args.kwarg]]
        assert [each.arg for part in parts for each in part if each] == list(arguments), name


def test_members_that_are_left_out_exist(writer: ModuleType) -> None:
    """A member that was renamed would otherwise be on the pages again."""
    for name, members in writer.INSIDE.items():
        if name:
            found = writer.public_names.find(name, "samestep")
            is_module = isinstance(found.node, ast.Module)
            known = vars(getattr(samestep, name)) if is_module else dir(getattr(samestep, name))
            fields = {} if is_module else writer.public_names.fields_of(found)
            assert [each for each in members.split() if each not in known and each not in fields] == [], name


def test_a_name_without_a_docstring_is_refused(writer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = writer.public_names.find("Every", "samestep")
    bare = writer.public_names.Definition(found.module, found.node, "")
    monkeypatch.setattr(writer.public_names, "find", lambda name, module: bare)
    with pytest.raises(AssertionError, match="Every has no docstring"):
        writer.entry("Every", {})
