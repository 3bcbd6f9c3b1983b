"""The diffusion pass by pass: in the terminal, or as one HTML file whose look is in the template beside this file.

A token that was revealed never changes, so a row is its final tokens and, for each, the pass that revealed it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from samestep.data.tokenizer.vocabulary import Tokenizer
from samestep.recipes.mdlm.sampling import Look, Observer

HIDDEN = -1
"""The pass of a token that is still hidden; 0 is that of a token that was given."""
SPECIAL = "∎"
"""How an end of a text or a turn, or a header, is shown."""
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"}
"""Signs for what a terminal would obey and a page would swallow."""
BROKEN = "\ufffd"
LONGEST_LETTER = 4
"""Bytes of the longest letter in UTF-8, hence tokens that may share one."""


class RevealTrace:
    """An observer that remembers, for each token of each row, the pass that revealed it and its probability."""

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self.when = self.probability = torch.empty(0)

    def __call__(self, look: Look) -> None:
        """Take in one pass."""
        if not look.done:
            self.when = torch.where(look.tokens == self._mask, HIDDEN, 0).cpu()
            self.probability = torch.ones(self.when.shape, dtype=torch.float64)
        self.when.scatter_(1, look.places.cpu(), look.done)
        self.probability.scatter_(1, look.places.cpu(), look.probability.cpu())


def glyphs(tokens: Sequence[int] | Tensor, tokenizer: Tokenizer, hidden: str = "░") -> list[str]:
    """How each token reads; a letter of several tokens stands with the first of them."""
    tokens = [int(token) for token in tokens]
    vocabulary = tokenizer.vocabulary
    marks = dict.fromkeys((vocabulary.bos, vocabulary.eos, vocabulary.eot, *(vocabulary.headers or ())), SPECIAL)
    marks[vocabulary.mask] = hidden
    found: list[str] = []
    while len(found) < len(tokens):
        at = len(found)
        if tokens[at] in marks:
            found.append(marks[tokens[at]])
            continue
        for size in range(1, LONGEST_LETTER + 1):
            text = tokenizer.decode(tokens[at : at + size])
            if BROKEN not in text:
                break
        else:
            text, size = BROKEN, 1
        found += [text.translate(CONTROLS), *[""] * (size - 1)]
    return found


TEMPLATE = Path(__file__).with_name("animation.html")


@dataclass(frozen=True)
class AnimatedText:
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


def html_page(films: Sequence[AnimatedText], title: str, note: str) -> str:
    """The page; `note` is a line under the title."""
    # Inside a script element only a closing tag could end the data.
    data = json.dumps([asdict(film) for film in films], ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, value in (("TITLE", escape(title)), ("NOTE", escape(note)), ("FILMS", data)):
        page = page.replace(f"<!--{name}-->", value)
    return page


PACE = 0.05
"""Seconds that each pass is shown at least: a small network would be done before one sees anything."""
NEW, DIM = "bold reverse green", "dim"
BAR = 24
"""Letters of the bar."""


@contextmanager
def watching(tokenizer: Tokenizer, console: Console) -> Iterator[Observer]:
    """An observer that shows every pass for as long as the context lasts, and leaves nothing behind on a terminal."""
    trace = RevealTrace(tokenizer.vocabulary.mask)
    if not console.is_terminal:
        yield lambda look: _say(look, trace, tokenizer, console)
        return
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield lambda look: _draw(look, trace, tokenizer, live)


def _draw(look: Look, trace: RevealTrace, tokenizer: Tokenizer, live: Live) -> None:
    begun = time.monotonic()
    trace(look)
    rows = [_row(look, trace, tokenizer, number) for number in range(len(look.tokens))]
    live.update(Group(_headline(look, trace), *rows), refresh=True)
    time.sleep(max(0.0, PACE - (time.monotonic() - begun)))


def _say(look: Look, trace: RevealTrace, tokenizer: Tokenizer, console: Console) -> None:
    """A line a row; what would break the line is shown as a sign."""
    trace(look)
    for number, tokens in enumerate(look.tokens):
        text = "".join(glyphs(tokens, tokenizer)).replace("\n", "⏎").replace("\t", "→")
        which = f" row {number + 1}" if len(look.tokens) > 1 else ""
        console.print(Text(f"pass {look.done:>{len(str(look.passes))}}/{look.passes}{which}  {text}"), soft_wrap=True)


def _headline(look: Look, trace: RevealTrace) -> Text:
    written, hidden = int((trace.when > 0).sum()), int((trace.when == HIDDEN).sum())
    filled = BAR * written // max(1, written + hidden)
    bar = ("━" * filled, "green"), ("━" * (BAR - filled), DIM)
    return Text.assemble(f"pass {look.done}/{look.passes} ", *bar, f" {written} of {written + hidden} tokens\n")


def _row(look: Look, trace: RevealTrace, tokenizer: Tokenizer, number: int) -> Text:
    text = Text()
    for glyph, when in zip(glyphs(look.tokens[number], tokenizer), trace.when[number].tolist()):
        # A revealed blank or line end would be invisible without its colour.
        is_new = when == look.done and when > 0
        shown = glyph.replace("\n", "⏎\n") if is_new else glyph
        text.append(shown, style=NEW if is_new else DIM if when == HIDDEN else "cyan" if when == 0 else "")
    return text.append("\n")
