"""The page of an evaluation."""

from html.parser import HTMLParser
from typing import Any

import pytest

from samestep.recipes.lens.evaluation import evaluation_page
from samestep.recipes.lens.measuring import METHODS


class Elements(HTMLParser):
    """The names and attributes of all elements, and the text of marks."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.marked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "mark":
            self.marked.append(data)


def page(**changes: Any) -> str:
    metrics = {"fve": 0.25, "kl_recovered": 0.5, "kl": 1.0, "relative_error": 0.75}
    results = {
        **{"model": "<b>model", "layer": 3, "t_text": 4, "best_of": 8, "rows": 2, "same_tokens": 0.5},
        **{"stage": "grpo", "part": "test"},
        "methods": dict.fromkeys(METHODS, metrics),
    }
    texts = {
        "before": "a\nb",
        "token": "<script>",
        "after": "<!--TITLE-->",
        "sampled": "x",
        "greedy": "y",
        "best": "&z",
    }
    record = {**texts, "error": 0.5, "greedy_error": 0.4, "best_error": 0.3, **changes}
    return evaluation_page(results, [record])


def test_texts_are_texts() -> None:
    """Whatever a model writes, it adds no element to the page and fills no place of the template."""
    found = Elements()
    found.feed(page())
    assert "script" not in found.names and "b" not in found.names and not found.links
    assert found.marked[0] == "<script>"
    assert "&lt;!--TITLE--&gt;" in page() and "&amp;z" in page()
    assert "a⏎b" in page()


HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><!--TABLE--></td>\u2028&lt;"


@pytest.mark.parametrize("field", ["before", "token", "after", "sampled", "greedy", "best"])
def test_every_text_of_a_record_is_escaped(field: str) -> None:
    found, expected = Elements(), Elements()
    found.feed(page(**{field: HOSTILE}))
    expected.feed(page(**{field: "x"}))
    assert (found.names, found.links) == (expected.names, [])


def test_metrics_and_errors_are_there() -> None:
    shown = page()
    assert shown.count('<rect class="blue"') == 4 and shown.count('<rect class="grey"') == 4
    assert shown.count("0.2500") == len(METHODS)
    for part in ("best of 8", "0.300", "0.400", "0.500", "The first 1 of 2", "50.0%", "2 activations of layer 3"):
        assert part in shown
    assert "<!--" not in shown
