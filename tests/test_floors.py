"""Imports flow down the floors: the lower a floor, the less it knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import samestep

HOME = Path(samestep.__file__).parent
FLOORS = {
    "core": 1,
    "world": 2,
    "launch": 2,
    "data": 3,
    "parallel": 3,
    "checkpoint": 3,
    "models": 3,
    "train": 4,
    "recipes": 5,
    "verify": 5,
    "doctor": 5,
    "why": 5,
    "cli": 6,
}
FORBIDDEN = {("recipes", "checkpoint")} | {(room, "launch") for room in ("recipes", "train", "data", "models")}


def imports(source: str) -> Iterator[str]:
    """Every module of samestep that a source text imports, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("samestep."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "samestep":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def broken(own: list[str], imported: str) -> str | None:
    """Why a file in room `own` may not import `imported`, or None."""
    room, other = own[0], imported.split(".")[1]
    if other not in FLOORS:
        return f"imports {imported}, which lies on no floor"
    if room == other:
        if room == "recipes" and imported.split(".")[2] != own[1]:
            return f"imports another recipe, {imported}"
        return None
    if FLOORS[other] >= FLOORS[room]:
        return f"on floor {FLOORS[room]} imports {imported} on floor {FLOORS[other]}"
    return f"imports {imported}" if (room, other) in FORBIDDEN else None


def files() -> list[Path]:
    return sorted(path for path in HOME.rglob("*.py") if path.parent != HOME)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(HOME)))
def test_imports_flow_down(path: Path) -> None:
    own = list(path.relative_to(HOME).with_suffix("").parts)
    found = [reason for imported in imports(path.read_text()) if (reason := broken(own, imported))]
    assert not found, f"{path.relative_to(HOME)} {'; '.join(found)}"


@pytest.mark.parametrize(
    ("own", "imported"),
    [
        (["core", "x"], "samestep.world.world"),
        (["world", "x"], "samestep.launch.local"),
        (["data", "x"], "samestep.checkpoint.store"),
        (["train", "x"], "samestep.recipes.mdlm"),
        (["train", "x"], "samestep.launch.local"),
        (["recipes", "a", "x"], "samestep.recipes.b"),
        (["recipes", "a", "x"], "samestep.checkpoint.store"),
        (["doctor", "x"], "samestep.cli.main"),
    ],
)
def test_the_rule_can_fail(own: list[str], imported: str) -> None:
    assert broken(own, imported)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(HOME)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400, "split it: a reader should see a file as one thing"
