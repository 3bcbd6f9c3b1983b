"""The diffusion in the terminal, pass by pass: hidden tokens dim, those of this pass bright; plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from samestep.data.vocabulary import Tokenizer
from samestep.recipes.mdlm.sampling import Look, Observer
from samestep.recipes.mdlm.watching_trace import HIDDEN, Trace, glyphs

PACE = 0.05
"""Seconds that each pass is shown at least: a small network would be done before one sees anything."""
NEW, DIM = "bold reverse green", "dim"
BAR = 24
"""Letters of the bar."""


@contextmanager
def watching(tokenizer: Tokenizer, console: Console) -> Iterator[Observer]:
    """An observer that shows every pass for as long as the context lasts, and leaves nothing behind on a terminal."""
    trace = Trace(tokenizer.vocabulary.mask)
    if not console.is_terminal:
        yield lambda look: _say(look, trace, tokenizer, console)
        return
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield lambda look: _draw(look, trace, tokenizer, live)


def _draw(look: Look, trace: Trace, tokenizer: Tokenizer, live: Live) -> None:
    begun = time.monotonic()
    trace(look)
    rows = [_row(look, trace, tokenizer, number) for number in range(len(look.tokens))]
    live.update(Group(_headline(look, trace), *rows), refresh=True)
    time.sleep(max(0.0, PACE - (time.monotonic() - begun)))


def _say(look: Look, trace: Trace, tokenizer: Tokenizer, console: Console) -> None:
    """A line a row; what would break the line is shown as a sign."""
    trace(look)
    for number, tokens in enumerate(look.tokens):
        text = "".join(glyphs(tokens, tokenizer)).replace("\n", "⏎").replace("\t", "→")
        which = f" row {number + 1}" if len(look.tokens) > 1 else ""
        console.print(Text(f"pass {look.done:>{len(str(look.passes))}}/{look.passes}{which}  {text}"), soft_wrap=True)


def _headline(look: Look, trace: Trace) -> Text:
    written, hidden = int((trace.when > 0).sum()), int((trace.when == HIDDEN).sum())
    filled = BAR * written // max(1, written + hidden)
    bar = ("━" * filled, "green"), ("━" * (BAR - filled), DIM)
    return Text.assemble(f"pass {look.done}/{look.passes} ", *bar, f" {written} of {written + hidden} tokens\n")


def _row(look: Look, trace: Trace, tokenizer: Tokenizer, number: int) -> Text:
    text = Text()
    for glyph, when in zip(glyphs(look.tokens[number], tokenizer), trace.when[number].tolist()):
        # A revealed blank or line end would be invisible without its colour.
        is_new = when == look.done and when > 0
        shown = glyph.replace("\n", "⏎\n") if is_new else glyph
        text.append(shown, style=NEW if is_new else DIM if when == HIDDEN else "cyan" if when == 0 else "")
    return text.append("\n")
