"""Every kind of page: hostile text stays text, the policy is there, and nothing is loaded from elsewhere."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

import samestep
from page_parts import PageParts
from samestep.core.pages.html import content_policy
from samestep.doctor.checks.speed import Point
from samestep.doctor.report import svg
from samestep.recipes.gan.comparison_results import comparison_page
from samestep.recipes.lens.evaluation import evaluation_page
from samestep.recipes.lens.measuring import METHODS
from samestep.recipes.mdlm.animation import AnimatedText, html_page

HOME = Path(samestep.__file__).parent
HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></style><style>* { background: url(http://example.org) }</style>",
    "<!--TITLE--><!--<script>",
    "<a href='javascript:alert(1)'>x</a><base href=//example.org><link rel=stylesheet href=x>",
    "{{x}} ${x} %s \\u003c/script> \u2028 \x00 \ud800 \u202e",
]


def of_generators(text: str) -> str:
    wins = {"a": 1, "b": 1, "ties": 1, "rate": 0.5, "low": 0.1, "high": 0.9, "p_value": 1.0}
    question = {"criterion": text, "judge": text, "mode": text, "all": wins, "groups": {text: wins, "other": wins}}
    about = {"pairs_asked": 3, "first_named": 0.5, "same_in_both_orders": 0.5, "unread": 1}
    pair = {"prompt": text, "a": text, "b": text, "human": text, "verdicts": [{"winner": "a", "score": 0.5}]}
    words = {"distinct_1": 1.0, "distinct_2": 1.0, "distinct_3": 1.0, "words": 1.0, "words_std": 0.0}
    return comparison_page(
        {
            "a": {"name": text},
            "b": {"name": text},
            "records": {"count": 1, "name": text},
            "notes": [text],
            "questions": [{**question, **about}],
            "pairs": [pair],
            "texts": dict.fromkeys(("a", "b", "human"), words),
        }
    )


def of_activations(text: str) -> str:
    metrics = {"fve": 0.25, "kl_recovered": 0.5, "kl": 1.0, "relative_error": 0.75}
    about = {"model": text, "layer": 3, "part": "test", "stage": text}
    results = {**about, "t_text": 4, "best_of": 8, "rows": 2, "same_tokens": 0.5}
    record = dict.fromkeys(("before", "token", "after", "sampled", "greedy", "best"), text)
    errors = {"error": 0.5, "greedy_error": 0.4, "best_error": 0.3}
    return evaluation_page({**results, "methods": dict.fromkeys(METHODS, metrics)}, [{**record, **errors}])


def of_passes(text: str) -> str:
    return html_page([AnimatedText(text, [text, "b"], [1, 2], [0, 1], [1.0, 0.5])], text, text)


PAGES = [of_generators, of_activations, of_passes]
"""A new kind of page belongs here."""


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("write", PAGES)
def test_hostile_text_is_text(write: Callable[[str], str], text: str) -> None:
    """It adds no element and no attribute; and the page can be written."""
    found, usual = PageParts(write(text)), PageParts(write("usual"))
    assert found.names == usual.names
    assert {name: len(values) for name, values in found.attributes.items()} == {
        name: len(values) for name, values in usual.attributes.items()
    }
    write(text).encode()


@pytest.mark.parametrize("write", PAGES)
def test_the_policy_is_that_of_the_page(write: Callable[[str], str]) -> None:
    """It is before everything that it governs, and names the one style and the one script that are there."""
    found = PageParts(write("usual"))
    assert found.names[:4] == ["html", "head", "meta", "meta"]
    assert found.attributes["meta", "http-equiv"] == ["Content-Security-Policy"]
    (style,) = found.texts["style"]
    script = [text for text in found.texts.get("script", []) if not text.startswith("[")]
    assert found.attributes["meta", "content"][0] == content_policy(style, "".join(script))
    assert len(script) <= 1 and not any("style" in key for key in found.attributes if key[0] != "meta")


@pytest.mark.parametrize("write", PAGES)
def test_nothing_is_loaded(write: Callable[[str], str]) -> None:
    page, found = write("usual"), PageParts(write("usual"))
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(found.names)
    assert not [key for key in found.attributes if key[1] in ("src", "href", "srcset", "action", "data", "poster")]
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_plot_of_doctor(text: str) -> None:
    """It is XML, and says the title as it is, but for what cannot be written."""
    points = [Point(2**power, 1e-5, 2**power * 1e5) for power in range(10, 14)]
    drawn, usual = (ElementTree.fromstring(svg(points, title)) for title in (text, "usual"))
    assert [part.tag for part in drawn.iter()] == [part.tag for part in usual.iter()]
    said = [part.text for part in drawn.iter() if part.tag.endswith("text")]
    assert re.sub("[\x00\ud800]", "\ufffd", text) in said
    assert not [name for part in drawn.iter() for name in part.attrib if "href" in name or name.startswith("on")]


def test_pages_and_tables_are_written_in_one_place() -> None:
    """A page that is written elsewhere is not checked here, and may forget to escape."""
    by_hand = re.compile(r"<(html|svg|table|td|body|script)\b|html import escape|html\.escape|rich\.table|\b[lr]just\(")
    allowed = {"core/pages/html.py", "core/pages/tables.py", "train/logging/console.py", "core/lease.py"}
    paths = {str(path.relative_to(HOME)): path for path in HOME.rglob("*.py")}
    found = {name for name, path in paths.items() if by_hand.search(path.read_text())}
    assert found - allowed == set() and {"core/pages/tables.py"} <= found
    assert not list(HOME.rglob("*.html"))
