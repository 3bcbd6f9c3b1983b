"""The diffusion as one HTML file, without network or libraries; its look and behaviour are in the template beside it.

A token that was revealed never changes, so a row is its final tokens and, for each, the pass that revealed it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from samestep.recipes.mdlm.watching_trace import HIDDEN

TEMPLATE = Path(__file__).with_name("watching.html")


@dataclass(frozen=True)
class Film:
    """One row: how its tokens read, which they are, when each was revealed (0: given), and how likely it was."""

    title: str
    glyphs: Sequence[str]
    tokens: Sequence[int]
    when: Sequence[int]
    probability: Sequence[float]

    def __post_init__(self) -> None:
        """All lists go token by token, and nothing is hidden at the end."""
        assert len(self.glyphs) == len(self.tokens) == len(self.when) == len(self.probability)
        assert HIDDEN not in self.when


def animation(films: Sequence[Film], title: str, note: str) -> str:
    """The page; `note` is a line under the title."""
    # Inside a script element only a closing tag could end the data.
    data = json.dumps([asdict(film) for film in films], ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, value in (("TITLE", escape(title)), ("NOTE", escape(note)), ("FILMS", data)):
        page = page.replace(f"<!--{name}-->", value)
    return page
