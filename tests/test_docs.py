"""The documentation as text: lines that fit a screen, and paths that lead to files of this repository."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 119
DESIGN_WORDS = 4000
"""As `wc -w` counts them: a page that is read at one go."""
SUFFIXES = "py|sh|md|yaml|toml"
NOT_OURS = {"json.py", "pip.py", "setup.py", "torch.py"}
"""Files that somebody else may have planted, on the page about security."""


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line, with the language of the code block that it is in: empty for output, "text" outside of blocks."""
    language = "text"
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            language = line.strip().removeprefix("```") if language == "text" else "text"
        yield language, line


def too_long(text: str) -> list[str]:
    """Lines that are too long. What a program printed stays as it was printed."""
    return [line for language, line in lines(text) if language and len(line) > LONGEST]


def named_files(text: str) -> set[str]:
    """What stands in backticks and looks like a file of this repository."""
    prose = "\n".join(line for language, line in lines(text) if language == "text")
    return set(re.findall(rf"`((?:[\w.-]+/)*[\w-]+\.(?:{SUFFIXES}))`", prose)) - NOT_OURS


def is_there(name: str, page: Path) -> bool:
    """Whether a file is there: a path from the root, the package, the tests or a page's recipe, one in a project that
    `samestep new` makes, or a file's name."""
    source = ROOT / "src" / "samestep"
    roots = [ROOT, ROOT / "src", source, ROOT / "tests", source / "recipes" / page.stem, page.parent]
    if any((root / name).is_file() for root in roots):
        return True
    if any(next(source.glob(f"recipes/*/project/{name}{ending}"), None) for ending in ("", ".template")):
        return True
    return "/" not in name and any(
        next(root.rglob(name), None) for root in (source, ROOT / "examples", ROOT / "scripts")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_a_screen(page: Path) -> None:
    assert not too_long(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_are_there(page: Path) -> None:
    assert not [name for name in sorted(named_files(page.read_text())) if not is_there(name, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def missing_names(text: str) -> list[str]:
    """Of "`name` (`file.py`)" and "`name` in `file.py`": names that the file of the package does not define."""
    pairs = re.findall(r"`([\w.]+)(?:\([^`]*\))?`\s+(?:in\s+|\()`([\w/]+\.py)`", text)
    assert pairs
    sources = {file: (ROOT / "src" / "samestep" / file).read_text() for _, file in pairs}
    last = [(name.rpartition(".")[2], file) for name, file in pairs]
    return [f"{file}: {name}" for name, file in last if not re.search(rf"\b(?:def|class) {name}\b", sources[file])]


def test_the_design_names_functions_that_are_there() -> None:
    assert not missing_names((ROOT / "docs" / "design.md").read_text())


def test_the_design_is_read_at_one_go() -> None:
    assert len((ROOT / "docs" / "design.md").read_text().split()) <= DESIGN_WORDS


def test_the_checks_can_fail() -> None:
    assert missing_names("`Fit.stop` (`train/api/fit.py`)") and not missing_names("`run` in `train/api/loop.py`")
    long = "x" * (LONGEST + 1)
    assert too_long(long) and too_long(f"```sh\n{long}\n```") and not too_long(f"```\n{long}\n```")
    assert named_files("see `train/api/lop.py`\n```sh\nsee `a/b.py`\n```") == {"train/api/lop.py"}
    page = ROOT / "docs" / "design.md"
    assert is_there("train/api/loop.py", page) and is_there("loop.py", page)
    assert not is_there("train/api/lop.py", page) and not is_there("train/loop.py", page)
