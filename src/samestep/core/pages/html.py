"""HTML pages that are one file each, need nothing from elsewhere, and in which every text is a text.

    write_text(path, page("A title", note("about it"), section("Numbers", table.html())))

Texts of models, prompts and names may hold anything. So elements are made by functions: what is not `Html` is escaped
where it is put into an element, and what is glued together by hand is no `Html` any more. Every page has a policy that
a browser enforces: nothing is loaded, and no style or script runs but the one that the page was written with, known by
its hash. So attributes cannot hold styles; drawings have attributes of their own (see drawing.py).
"""

import base64
import hashlib
import html
import json
import re
import struct
from pathlib import Path
from typing import Any

STYLE = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("drawing.css", "page.css"))
"""The style sheet of all pages."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EMPTY = {"meta", "input", "br"}
"""Elements that have no end tag."""
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Controls, which XML does not allow, and halves of surrogate pairs, as in file names that are not UTF-8."""
_ATTRIBUTE = re.compile("(?!on)[a-zA-Z][a-zA-Z0-9-]*")
"""A name that begins with `on` would be that of a script."""


class Html(str):
    """What is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """A text, for an element or an attribute; HTML stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(_UNWRITABLE.sub("\ufffd", text)))


def element(tag: str, /, *parts: str, kind: str = "", **attributes: str | float) -> Html:
    """An element with its parts, escaped; `kind` is its class. An attribute `text_anchor` is text-anchor."""
    given = {**({"class": kind} if kind else {}), **attributes}
    shown = "".join(f' {_attribute_name(key)}="{escaped(_as_text(value))}"' for key, value in given.items())
    inside = "".join(map(escaped, parts))
    return Html(f"<{tag}{shown}>{inside}" + ("" if tag in _EMPTY else f"</{tag}>"))


def png_image(content: bytes, kind: str = "", alt: str = "") -> Html:
    """An image that the page holds."""
    return _image("image/png", content, kind, alt)


def png_size(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG file; 0 and 0 for what is none."""
    if not content.startswith(PNG_SIGNATURE) or len(content) <= 24:
        return 0, 0
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def svg_image(drawn: str, kind: str = "", alt: str = "") -> Html:
    """A drawing with a style of its own (`drawing_file`), which changes nothing around it: for HTML in a notebook."""
    return _image("image/svg+xml", drawn.encode(), kind, alt)


def _image(media: str, content: bytes, kind: str, alt: str) -> Html:
    held = base64.b64encode(content).decode()
    return Html(f'<img class="{escaped(kind)}" alt="{escaped(alt)}" src="data:{media};base64,{held}">')


def note(*parts: str) -> Html:
    """A line of small print."""
    return element("p", *parts, kind="note")


def section(title: str, *parts: str) -> Html:
    """A part of a page, in a box of its own."""
    return element("section", element("h2", title), *parts, kind="card")


def page(title: str, *parts: str, style: str = "", script: str = "", data: Any = None) -> str:
    """A whole page. `style` and `script` come from the program, never from data; the script finds `data`, as JSON, in
    the element of that name."""
    assert not any(end in text for end in ("</", "<!--") for text in (style, script))
    sheet = STYLE + style
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=content_policy(sheet, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(sheet)),
    ]
    body = [element("main", element("h1", title), *parts)]
    if script:
        # A closing tag would end the data; JSON may spell it in another way.
        held = Html(json.dumps(data).replace("<", "\\u003c"))
        body += [element("script", held, type="application/json", id="data"), element("script", Html(script))]
    document = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"


def content_policy(style: str, script: str = "") -> str:
    """Nothing but this style and this script, and images that the page itself holds."""
    allowed = f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src {_hash(style)}"
    return f"{allowed}; script-src {_hash(script)}" if script else allowed


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _attribute_name(key: str) -> str:
    name = key.replace("_", "-")
    assert _ATTRIBUTE.fullmatch(name), name
    assert name not in ("style", "src", "href"), f"{name} is refused by the browser"
    return name


def _as_text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}" if isinstance(value, float) else f"{value}"
