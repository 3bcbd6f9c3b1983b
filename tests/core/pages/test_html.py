"""Whatever a text holds, it is a text in the page; and the policy allows what the page was written with alone."""

import base64
import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_parts import PageParts
from samestep.core.pages.html import Html, content_policy, element, escaped, note, page, section

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><!--x--></td>]]>\u2028&lt;\x00\ud800"


@given(st.text())
def test_any_text_is_a_text(text: str) -> None:
    """In an element and in an attribute, and it can be written."""
    found = PageParts(page(text, note(text), section(text, element("p", text, title=text))))
    shown = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]", "\ufffd", text)
    assert found.names == PageParts(page("x", note("x"), section("x", element("p", "x", title="x")))).names
    assert found.attributes["p", "title"] == [shown]
    page(text).encode()


def test_hostile_text_adds_no_element() -> None:
    assert escaped(HOSTILE).isprintable() or "\u2028" in escaped(HOSTILE)
    for mark in ("<", ">", '"', "'", "\x00", "\ud800"):
        assert mark not in escaped(HOSTILE)
    assert escaped(HOSTILE).startswith("&quot;&#x27;&gt;&lt;script&gt;")


def test_only_what_elements_made_is_not_escaped() -> None:
    made = element("b", "x")
    assert element("p", made) == "<p><b>x</b></p>"
    assert element("p", f"{made}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>", "glued by hand, it is a text"
    assert element("p", made + "<i>") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;i&gt;</p>"
    assert isinstance(escaped(made), Html) and escaped(made) == made


def test_attributes() -> None:
    assert element("p", kind="a b", aria_label="x", max=3) == '<p class="a b" aria-label="x" max="3"></p>'
    assert element("line", x1=1 / 3) == '<line x1="0.3"></line>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    for name in ("onclick", "style", "src", "href", "a b", ""):
        with pytest.raises(AssertionError):
            element("p", **{name: "x"})


def test_the_policy_names_the_style_and_the_script() -> None:
    """A browser compares these hashes with what is in the page, so nothing else runs."""
    found = PageParts(page("x", style="p { color: red; }", script="alert(1);", data={"a": "</script>"}))
    policy = found.attributes["meta", "content"][0]
    assert policy == content_policy(found.texts["style"][0], "alert(1);")
    for text in (found.texts["style"][0], "alert(1);"):
        hashed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{hashed}'" in policy
    assert found.texts["style"][0].endswith("p { color: red; }")
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
    assert "unsafe" not in policy and "script-src" not in content_policy("")


def test_data_cannot_end_its_element() -> None:
    data = [HOSTILE, "</script>", "<!--<script>"]
    found = PageParts(page("x", script="1;", data=data))
    assert json.loads(found.texts["script"][0]) == data and found.texts["script"][1:] == ["1;"]


@pytest.mark.parametrize("part", ["</script>", "<!--"])
def test_a_script_that_would_end_its_element_is_no_script(part: str) -> None:
    with pytest.raises(AssertionError):
        page("x", script=part)
    with pytest.raises(AssertionError):
        page("x", style=part)
