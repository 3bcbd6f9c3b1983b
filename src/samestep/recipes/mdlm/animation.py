"""The diffusion pass by pass: in the terminal, or as one HTML page with the script animation.js.

A revealed token never changes, so a row is its final tokens and, for each, the pass that revealed it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from samestep.core.pages.html import Html, element, note, page
from samestep.data.tokenizer.vocabulary import Tokenizer
from samestep.recipes.mdlm.sampling import Observer, SamplingPass

MASKED = -1
"""The pass of a token that is still masked; 0 stands for a token of the prompt."""
SPECIAL = "∎"
"""How an end of a text or a turn, or a header, is shown."""
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"}
"""Visible signs for control characters, which a terminal would act on and a page would not show."""
INVALID = "\ufffd"
MAX_CHARACTER_BYTES = 4
"""Bytes of the longest character in UTF-8, hence the most tokens that one character takes."""
SECONDS_PER_PASS = 0.05
"""Each pass is shown at least this long: a small network would be done before anything is seen."""
NEW, DIM = "bold reverse green", "dim"
BAR = 24
"""Characters of the progress bar."""


class RevealTrace:
    """An observer that records, for each token of each row, the pass that revealed it and its probability."""

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self.when = self.probability = torch.empty(0)

    def __call__(self, current: SamplingPass) -> None:
        if not current.done:
            self.when = torch.where(current.tokens == self._mask, MASKED, 0).cpu()
            self.probability = torch.ones(self.when.shape, dtype=torch.float64)
        self.when.scatter_(1, current.columns.cpu(), current.done)
        self.probability.scatter_(1, current.columns.cpu(), current.probability.cpu())


def glyphs(tokens: Sequence[int] | Tensor, tokenizer: Tokenizer, masked: str = "░") -> list[str]:
    """The text of each token; a character of several tokens is shown at the first of them."""
    tokens = [int(token) for token in tokens]
    vocabulary = tokenizer.vocabulary
    marks = dict.fromkeys((vocabulary.bos, vocabulary.eos, vocabulary.eot, *(vocabulary.headers or ())), SPECIAL)
    marks[vocabulary.mask] = masked
    found: list[str] = []
    while len(found) < len(tokens):
        at = len(found)
        if tokens[at] in marks:
            found.append(marks[tokens[at]])
            continue
        for size in range(1, MAX_CHARACTER_BYTES + 1):
            text = tokenizer.decode(tokens[at : at + size])
            if INVALID not in text:
                break
        else:
            text, size = INVALID, 1
        found += [text.translate(CONTROLS), *[""] * (size - 1)]
    return found


@dataclass(frozen=True)
class AnimatedText:
    """One row: its tokens as text and as ids, the pass that revealed each (0: given), and its probability."""

    title: str
    glyphs: Sequence[str]
    tokens: Sequence[int]
    when: Sequence[int]
    probability: Sequence[float]

    def __post_init__(self) -> None:
        """All lists have one entry per token, and nothing is masked at the end."""
        assert len(self.glyphs) == len(self.tokens) == len(self.when) == len(self.probability)
        assert MASKED not in self.when


def html_page(texts: Sequence[AnimatedText], title: str, about: str) -> str:
    """The HTML page; `about` is a line under the title."""
    parts = note(about), _legend(), element("div", id="texts"), _bar()
    style, script = (Path(__file__).with_name(f"animation.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return page(title, *parts, style=style, script=script, data=[asdict(text) for text in texts])


def _legend() -> Html:
    chips = {"in this pass": "chip fresh", "still masked": "chip masked"}
    return element(
        "p",
        element("span", "revealed first", element("i", kind="ramp"), "last"),
        *(element("span", element("i", kind=kind), name) for name, kind in chips.items()),
        element("span", element("b", "bold"), "given"),
        kind="legend",
    )


def _bar() -> Html:
    """What moves through the passes."""
    hint = "Tap a token: the pass that revealed it, its probability."
    controls = (
        element("button", "▶", id="play", aria_label="play"),
        element("input", id="slider", type="range", min=0, value=0, step=1, aria_label="pass"),
        element("output", id="count"),
    )
    detail = element("div", hint, kind="detail", id="detail", aria_live="polite")
    return element("div", element("div", detail, element("div", *controls, kind="controls")), kind="bar")


@contextmanager
def show_passes(tokenizer: Tokenizer, console: Console) -> Iterator[Observer]:
    """An observer that shows every pass; on a terminal, the display is removed at the end."""
    if not console.is_terminal:
        yield lambda current: _print(current, tokenizer, console)
        return
    trace = RevealTrace(tokenizer.vocabulary.required_mask)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield lambda current: _draw(current, trace, tokenizer, live)


def _draw(current: SamplingPass, trace: RevealTrace, tokenizer: Tokenizer, live: Live) -> None:
    start = time.monotonic()
    trace(current)
    rows = [_row(current, trace, tokenizer, number) for number in range(len(current.tokens))]
    live.update(Group(_headline(current, trace), *rows), refresh=True)
    time.sleep(max(0.0, SECONDS_PER_PASS - (time.monotonic() - start)))


def _print(current: SamplingPass, tokenizer: Tokenizer, console: Console) -> None:
    """Print each row on one line, with signs for line ends and tabs."""
    for number, tokens in enumerate(current.tokens):
        text = "".join(glyphs(tokens, tokenizer)).replace("\n", "⏎").replace("\t", "→")
        which = f" row {number + 1}" if len(current.tokens) > 1 else ""
        console.print(
            Text(f"pass {current.done:>{len(str(current.passes))}}/{current.passes}{which}  {text}"), soft_wrap=True
        )


def _headline(current: SamplingPass, trace: RevealTrace) -> Text:
    revealed, masked = int((trace.when > 0).sum()), int((trace.when == MASKED).sum())
    filled = BAR * revealed // max(1, revealed + masked)
    bar = ("━" * filled, "green"), ("━" * (BAR - filled), DIM)
    return Text.assemble(f"pass {current.done}/{current.passes} ", *bar, f" {revealed} of {revealed + masked} tokens\n")


def _row(current: SamplingPass, trace: RevealTrace, tokenizer: Tokenizer, number: int) -> Text:
    text = Text()
    for glyph, when in zip(glyphs(current.tokens[number], tokenizer), trace.when[number].tolist()):
        # A revealed space or line end would be invisible without its colour.
        is_new = when == current.done and when > 0
        shown = glyph.replace("\n", "⏎\n") if is_new else glyph
        text.append(shown, style=NEW if is_new else DIM if when == MASKED else "cyan" if when == 0 else "")
    return text.append("\n")
