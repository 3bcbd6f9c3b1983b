"""One table: in a page, on the console, and as lines."""

import io

from page_parts import PageParts
from samestep.core.console import PlainConsole
from samestep.core.pages.html import element
from samestep.core.pages.tables import Column, Styled, Table

TABLE = Table(("name", "size"), [("a [b]", "10"), ("<b>c</b>", "2")], "All [of it]")


def shown(table: Table, width: int = 60) -> list[str]:
    out = io.StringIO()
    PlainConsole(file=out, width=width).print(table.drawn())
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def test_on_the_console() -> None:
    title, head, rule, *rows = shown(TABLE)
    assert title.strip() == "All [of it]", "brackets are no markup"
    assert head.split() == ["name", "size"] and set(rule.strip()) == {"─"}
    assert rows == [" a [b]       10", " <b>c</b>     2"]


def test_as_lines() -> None:
    assert TABLE.text().splitlines() == ["All [of it]", "name      size", "a [b]       10", "<b>c</b>     2"]
    assert Table((Column("a", is_number=True), Column("b")), [("1", "x"), ("22", "")]).text() == " a  b\n 1  x\n22"


def test_in_a_page() -> None:
    parts = PageParts(TABLE.html("ruled"))
    assert parts.names == ["table", "tr", "th", "th", "tr", "td", "td", "tr", "td", "td"]
    assert parts.attributes["table", "class"] == ["ruled"] and parts.attributes["td", "class"] == ["number"] * 2
    assert parts.texts["td"] == ["a [b]", "10", "<b>c</b>", "2"]
    cell = element("b", "made")
    assert PageParts(Table(("",), [(cell,)]).html()).names == ["table", "tr", "th", "tr", "td", "b"]


def test_styles_are_for_the_console_alone() -> None:
    table = Table((Column("result"),), [(Styled("FAILED", "bold red"),)])
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, color_system="standard")
    console.print(table.drawn())
    assert "\x1b[1;31mFAILED" in out.getvalue()
    assert table.text() == "result\nFAILED" and "<td>FAILED</td>" in table.html()


def test_what_wraps_and_what_does_not() -> None:
    words = "some words that are more than fit"
    assert len(shown(Table((Column("a", wraps=True, width=10),), [(words,)]))) > 3
    assert len(shown(Table((Column("a"),), [(words,)]))) == 3
