"""What the source says of public names: signatures, docstrings, fields and methods, read as text and never imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from samestep.core.config.schema import texts_under_fields

SOURCE = Path(__file__).resolve().parents[1] / "src"
LONGEST_LINE = 88
CALLS = ("__call__", "__getitem__", "__iter__", "__len__")
"""Special methods that are shown where they have a docstring: calls and subscripts."""


@dataclass(frozen=True)
class Definition:
    """Where a name is defined: a class, a function, a value, or a whole module."""

    module: str
    node: ast.ClassDef | ast.FunctionDef | ast.Assign | ast.Module
    text: str
    """The docstring; of a value the text under it."""

    @property
    def is_protocol(self) -> bool:
        return isinstance(self.node, ast.ClassDef) and "Protocol" in map(ast.unparse, self.node.bases)

    @property
    def is_exception(self) -> bool:
        return isinstance(self.node, ast.ClassDef) and "Exception" in map(ast.unparse, self.node.bases)


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, or an attribute that a class declares."""

    name: str
    annotation: str
    default: str | None
    text: str
    annotated_in: Definition

    def __str__(self) -> str:
        return f"{self.name}: {self.annotation}" + ("" if self.default is None else f" = {self.default}")


def file_of(module: str) -> Path:
    """The source of a module of the package."""
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(file_of(module).read_text())


@cache
def find(name: str, module: str) -> Definition | None:
    """What a name means in a module, followed through imports inside the package; None where it is somebody else's."""
    for part, follows in pairwise([*_statements(tree_of(module).body), ast.Pass()]):
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name == name:
            return Definition(module, part, ast.get_docstring(part) or "")
        if isinstance(part, ast.Assign) and getattr(part.targets[0], "id", None) == name:
            return Definition(module, part, _text(follows))
        if isinstance(part, ast.ImportFrom) and f"{part.module}".partition(".")[0] == "samestep":
            original = next((each.name for each in part.names if (each.asname or each.name) == name), None)
            inner = f"{part.module}.{original}"
            if original is not None and file_of(inner).is_file():
                return Definition(inner, tree_of(inner), ast.get_docstring(tree_of(inner)) or "")
            if original is not None:
                return find(original, f"{part.module}")
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for part in body:
        if isinstance(part, ast.If):
            yield from _statements(part.body)
        else:
            yield part


def _text(part: ast.stmt) -> str:
    value = getattr(part.value, "value", "") if isinstance(part, ast.Expr) else ""
    return " ".join(value.split()) if isinstance(value, str) else ""


def lineage(found: Definition) -> list[Definition]:
    """A class and its bases in the package, the most basic one first."""
    assert isinstance(found.node, ast.ClassDef)
    bases = [find(base.id, found.module) for base in found.node.bases if isinstance(base, ast.Name)]
    return [*(each for base in bases if base is not None for each in lineage(base)), found]


def fields_of(found: Definition) -> dict[str, Field]:
    """The fields that a class declares, inherited ones first; a text that a subclass leaves out is that of its base."""
    fields: dict[str, Field] = {}
    for owner in lineage(found):
        assert isinstance(owner.node, ast.ClassDef)
        texts = texts_under_fields(owner.node.body)
        for part in owner.node.body:
            if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
                continue
            name, annotation = part.target.id, ast.unparse(part.annotation)
            if not name.startswith("_") and "ClassVar" not in annotation:
                inherited = fields[name].text if name in fields else ""
                default = None if part.value is None else _default(part.value)
                fields[name] = Field(name, annotation, default, texts.get(name, inherited), owner)
    return fields


def _default(value: ast.expr) -> str:
    """A default as a reader needs it: of `field(default_factory=dict)` it is `dict()`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "free"):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in given:
            made = ast.unparse(given["default_factory"])
            return {"dict": "{}", "list": "[]"}.get(made, f"{made}()")
        return as_text(given.get("default") or value.args[0])
    return as_text(value)


def as_text(part: ast.expr) -> str:
    """Code as this project writes it, with double quotes."""
    text = ast.unparse(part)
    return text if '"' in text else text.replace("'", '"')


def methods_of(found: Definition) -> dict[str, tuple[ast.FunctionDef, str]]:
    """The public methods and properties of a class, each with the module that it is written in."""
    methods: dict[str, tuple[ast.FunctionDef, str]] = {}
    for owner in lineage(found):
        assert isinstance(owner.node, ast.ClassDef)
        for part in owner.node.body:
            is_public = not getattr(part, "name", "_").startswith("_") or getattr(part, "name", "") in CALLS
            if isinstance(part, ast.FunctionDef) and is_public and ast.get_docstring(part) is not None:
                methods[part.name] = (part, owner.module)
    return methods


def functions_of(module: ast.Module) -> list[ast.FunctionDef]:
    return [part for part in module.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]


def classes_of(module: Definition) -> list[Definition]:
    """The public classes of a module."""
    assert isinstance(module.node, ast.Module)
    parts = [part for part in module.node.body if isinstance(part, ast.ClassDef) and not part.name.startswith("_")]
    return [Definition(module.module, part, ast.get_docstring(part) or "") for part in parts]


def is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).endswith("property") for each in node.decorator_list)


def constructor(found: Definition) -> tuple[list[str], str]:
    """The arguments that make an object of a class, and what is said of them."""
    for owner in reversed(lineage(found)):
        assert isinstance(owner.node, ast.ClassDef)
        made = next((part for part in owner.node.body if getattr(part, "name", "") == "__init__"), None)
        if isinstance(made, ast.FunctionDef):
            return arguments(made), ast.get_docstring(made) or ""
    is_named = any("kw_only=True" in ast.unparse(each) for each in getattr(found.node, "decorator_list", ()))
    return [*(["*"] if is_named else []), *map(str, fields_of(found).values())], ""


def arguments(node: ast.FunctionDef) -> list[str]:
    """Each argument as it is written, without `self` and `cls`."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    found = [_argument(each, default) for each, default in zip(positional, defaults)]
    if given.posonlyargs:
        found.insert(len(given.posonlyargs), "/")
    found += [f"*{_argument(given.vararg)}"] if given.vararg else ["*"] if given.kwonlyargs else []
    found += [_argument(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults)]
    found += [f"**{_argument(given.kwarg)}"] if given.kwarg else []
    return [each for each in found if each not in ("self", "cls")]


def _argument(each: ast.arg, default: ast.expr | None = None) -> str:
    annotation = f": {annotated(each.annotation)}" if each.annotation is not None else ""
    return f"{each.arg}{annotation}" + (f" = {as_text(default)}" if default is not None else "")


def annotated(annotation: ast.expr) -> str:
    """A type as text; a class that is named before it is defined stands without quotes."""
    text = as_text(annotation)
    return text if "Literal" in text else text.replace('"', "")


def result(node: ast.FunctionDef) -> str:
    """What a call returns; what is for `with` says so."""
    if node.returns is None:
        return ""
    is_context = any(ast.unparse(each) == "contextmanager" for each in node.decorator_list)
    returned = annotated(node.returns)
    return f" -> {returned.replace('Iterator', 'AbstractContextManager', 1) if is_context else returned}"


def signature(name: str, given: list[str], gives: str = "") -> list[str]:
    """A call as code: on one line if it fits, else with one argument a line."""
    whole = f"{name}({', '.join(given)}){gives}"
    if len(whole) <= LONGEST_LINE:
        return ["```python", whole, "```"]
    return ["```python", f"{name}(", *(f"    {each}," for each in given), f"){gives}", "```"]


def names_in(*texts: str) -> list[str]:
    """The names that stand in types."""
    parsed = (ast.walk(ast.parse(text, mode="eval")) for text in texts if text)
    return [part.id for parts in parsed for part in parts if isinstance(part, ast.Name)]
