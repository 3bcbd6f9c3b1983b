"""What the README and the page on security show is what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_recipe_shown_is_the_tested_file() -> None:
    assert (ROOT / "examples" / "sine.py").read_text() in README


def test_it_starts_with_the_two_commands() -> None:
    first_block = README.split("```")[1]
    assert re.findall(r"^make \w+", first_block, re.MULTILINE) == ["make demo", "make test"]


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_page_on_security_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+test_\w+\.py)`", page))
    assert len(named) > 20
    missing = [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()]
    assert not missing
