"""Drawings: numbers are where the scale says, and a file of its own is XML."""

from xml.etree import ElementTree

import pytest

from samestep.core.pages.drawing import (
    Scale,
    axis_across,
    axis_down,
    bars,
    box,
    chip,
    curve,
    dot,
    drawing,
    drawing_file,
    line,
    text,
)

SPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = "</svg><script>alert(1)</script>\"'&\x00"


def test_scales() -> None:
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Scale(1, 100, 200, 100, is_log=True)(value) for value in (1, 10, 100)] == pytest.approx([200, 150, 100])
    assert Scale(3, 3, 10, 20)(3) == 10, "of a single number too"


def test_axes_have_a_rule_and_a_label_for_each_number() -> None:
    labels = {0.0: "none", 0.5: "half", 1.0: "all"}
    down = axis_down(Scale(0, 1, 200, 100), labels, left=50, right=90)
    assert down[2:4] == [line(50, 150, 90, 150), text(42, 154, "half", "end")]
    across = axis_across(Scale(0, 1, 50, 90), labels, 100, 200, {0.5: "even"})
    assert across[2:4] == [line(70, 100, 70, 200, "even"), text(70, 216, "half", "middle", "soft")]
    assert len(down) == len(across) == 6


def test_bars_are_as_high_as_their_share() -> None:
    rule, low, high = bars({0: 1, 3: 2}, Scale(0, 1, 0, 40), top=10, height=84, kinds=["blue"] * 3 + ["grey"])
    assert rule == line(0, 94, 40, 94)
    assert low == box(0, 54, 9, 40, "blue", "1") and high == box(30, 14, 9, 80, "grey", "2")


def test_a_file_of_its_own_is_xml_whatever_it_says() -> None:
    parts = text(1, 2, HOSTILE), dot(1, 2, "blue", HOSTILE), box(1, 2, 3, 4, "grey", HOSTILE)
    drawn = ElementTree.fromstring(drawing_file(30, 20, *parts, curve([(1, 2), (3, 4)], "orange")))
    kinds = [part.tag.removeprefix(SPACE) for part in drawn.iter()]
    assert kinds == ["svg", "style", "rect", "text", "circle", "title", "rect", "title", "polyline"]
    assert drawn.findtext(f"{SPACE}text") == HOSTILE.replace("\x00", "\ufffd")
    assert drawn.get("viewBox") == "0 0 30 20"
    assert drawn.findall(f"{SPACE}polyline")[0].get("points") == "1.0,2.0 3.0,4.0"


def test_inside_a_page_it_has_no_style_of_its_own() -> None:
    assert chip("blue") == drawing(14, 12, box(0, 0, 14, 12, "blue"))
    assert "style" not in drawing(10, 10) and 'viewBox="0 0 10 10"' in drawing(10, 10)
