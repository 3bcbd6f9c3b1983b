"""Imports flow down the floors: the lower a floor, the less it knows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import samestep

HOME = Path(samestep.__file__).parent
FLOORS = {
    "core": 1,
    "world": 2,
    "launching": 2,
    "data": 3,
    "parallel": 3,
    "checkpoint": 3,
    "models": 3,
    "train": 4,
    "kit": 5,
    "why": 5,
    "recipes": 6,
    "verify": 6,
    "doctor": 6,
    "report": 6,
    "cli": 7,
}
PUBLIC = {name: f"{module}.{name}" for name, module in samestep._homes().items()}
"""Where the names of `from samestep import ...` really are."""
ROOMS = {"train": ["record", "artifacts", "logging", "learner", "weights", "api", "trained", "session"]}
"""Folders inside a package that have an order as well: each knows those before it."""
MOST_FILE_LINES, MOST_CLASS_LINES = 500, 250
FORBIDDEN = {(package, "checkpoint") for package in ("recipes", "kit")} | {
    (package, "launching") for package in ("recipes", "kit", "train", "data", "models")
}


def imports(source: str) -> Iterator[str]:
    """Every module of samestep that a source text imports, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("samestep."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "samestep":
            names = [alias.name for alias in node.names]
            is_public = node.module == "samestep"
            yield from (PUBLIC[name] if is_public and name in PUBLIC else f"{node.module}.{name}" for name in names)


def broken(own: list[str], imported: str) -> str | None:
    """Why a file in package `own` may not import `imported`, or None."""
    package, other = own[0], imported.split(".")[1]
    if other not in FLOORS:
        return f"imports {imported}, which lies on no floor"
    if package == other:
        room, other_room = own[1], imported.split(".")[2]
        if package == "recipes" and other_room != room:
            return f"imports another recipe, {imported}"
        order = ROOMS.get(package, [])
        if room in order and order.index(room) < order.index(other_room):
            return f"in {room} imports {imported}, a later room"
        return None
    if FLOORS[other] >= FLOORS[package]:
        return f"on floor {FLOORS[package]} imports {imported} on floor {FLOORS[other]}"
    return f"imports {imported}" if (package, other) in FORBIDDEN else None


def files() -> list[Path]:
    return sorted(path for path in HOME.rglob("*.py") if path.parent != HOME)


def upward(path: Path) -> list[str]:
    """What a file imports though it may not."""
    own = list(path.relative_to(HOME).with_suffix("").parts)
    found = [reason for imported in imports(path.read_text()) if (reason := broken(own, imported))]
    return [f"{path.relative_to(HOME)} {reason}" for reason in found]


def test_imports_flow_down() -> None:
    found = [problem for path in files() for problem in upward(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("own", "imported"),
    [
        (["core", "x"], "samestep.world.world"),
        (["world", "x"], "samestep.launching.local"),
        (["data", "x"], "samestep.checkpoint.store"),
        (["train", "x"], "samestep.recipes.mdlm"),
        (["kit", "x"], "samestep.recipes.mdlm"),
        (["verify", "x"], "samestep.recipes.mdlm"),
        (["train", "x"], "samestep.launching.local"),
        (["train", "learner", "x"], "samestep.train.api.bench.Bench"),
        (["train", "record", "x"], "samestep.train.logging.metrics"),
        (["recipes", "a", "x"], "samestep.recipes.b"),
        (["recipes", "a", "x"], "samestep.checkpoint.store"),
        (["doctor", "x"], "samestep.cli.main"),
    ],
)
def test_the_rule_can_fail(own: list[str], imported: str) -> None:
    assert broken(own, imported)


def too_large(name: str, source: str) -> list[str]:
    """The file and the classes in it that a reader cannot see as one thing."""
    sizes = [(name, len(source.splitlines()), MOST_FILE_LINES)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            last = node.end_lineno or node.lineno
            sizes.append((f"{name}:{node.name}", last - node.lineno + 1, MOST_CLASS_LINES))
    return [f"{what} has {size} lines, not at most {most}" for what, size, most in sizes if size > most]


def test_files_and_classes_stay_small() -> None:
    found = [problem for path in files() for problem in too_large(str(path.relative_to(HOME)), path.read_text())]
    assert not found, "split: " + "; ".join(found)


def test_what_is_too_large_is_found() -> None:
    whole = "class A:\n" + "    x = 1\n" * (MOST_CLASS_LINES - 1) + "y = 1\n" * (MOST_FILE_LINES - MOST_CLASS_LINES)
    assert too_large("a.py", whole) == []
    assert too_large("a.py", whole + "y = 1\n") == ["a.py has 501 lines, not at most 500"]
    assert too_large("a.py", "class A:\n" + "    x = 1\n" * 250) == ["a.py:A has 251 lines, not at most 250"]


def modules() -> dict[str, Path]:
    """Every module of samestep by its dotted name."""
    names = {path: path.relative_to(HOME.parent).with_suffix("").parts for path in HOME.rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in names.items()}


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which module imports which, also inside functions and for type checking."""
    found: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for imported in imports(source):
            found[name].add(imported if imported in sources else imported.rpartition(".")[0])
    return found


def circle(imported_by: dict[str, set[str]]) -> list[str]:
    """A circle of imports, or nothing."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next((c for other in sorted(imported_by.get(name, ())) if (c := visit(other, [*path, name]))), [])
        done.add(name)
        return found

    return next((found for name in sorted(imported_by) if (found := visit(name, []))), [])


def siblings(imported_by: dict[str, set[str]]) -> Iterator[dict[str, set[str]]]:
    """The same graph for the files and folders of each folder, as its members see each other."""
    folders = {name.rsplit(".", depth)[0] for name in imported_by for depth in range(1, name.count(".") + 1)}
    for folder in sorted(folders):
        depth, found = folder.count(".") + 2, dict[str, set[str]]()
        for name, others in imported_by.items():
            for other in (
                other for other in others if name.startswith(f"{folder}.") and other.startswith(f"{folder}.")
            ):
                own, theirs = (".".join(each.split(".")[:depth]) for each in (name, other))
                found.setdefault(own, set()).update({theirs} - {own})
        yield found


def test_no_circle_between_siblings() -> None:
    sources = {name: path.read_text() for name, path in modules().items() if path.parent != HOME}
    assert not [found for level in siblings(graph(sources)) if (found := circle(level))]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (
            {"samestep.a": "from samestep.b import x", "samestep.b": "def f():\n    from samestep import a"},
            ["samestep.a", "samestep.b", "samestep.a"],
        ),
        (
            {
                "samestep.a.x.one": "from samestep.a.y.two import f",
                "samestep.a.y.two": "",
                "samestep.a.y.three": "from samestep.a.x.four import g",
                "samestep.a.x.four": "",
            },
            ["samestep.a.x", "samestep.a.y", "samestep.a.x"],
        ),
    ],
)
def test_a_circle_is_found(sources: dict[str, str], expected: list[str]) -> None:
    assert expected in [circle(level) for level in siblings(graph(sources))]


def test_hydra_is_not_needed() -> None:
    found = [
        name for name, path in modules().items() if re.search(r"(from|import) (hydra|omegaconf)", path.read_text())
    ]
    assert not found


def test_shared_code_names_no_recipe() -> None:
    """Whatever serves every recipe knows none by name."""
    recipes = {path.parent.name for path in HOME.glob("recipes/*/__init__.py")}
    word = re.compile(rf"\b({'|'.join(sorted(recipes))})\b")
    shared = {name: path for name, path in modules().items() if not name.startswith("samestep.recipes")}
    assert not [name for name, path in shared.items() if word.search(path.read_text())]


def test_everything_is_printed_in_one_place() -> None:
    """What is printed elsewhere could control the terminal."""
    prints = re.compile(r"(?<![\w.\"])print\(|rich import print|(?<!\w)Console\(")
    found = [name for name, path in modules().items() if prints.search(re.sub(r"def print\(", "", path.read_text()))]
    assert sorted(found) == ["samestep.core.output"]
