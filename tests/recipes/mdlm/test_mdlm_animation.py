"""Animation: the terminal and the HTML file show every pass as it was."""

import io
import json
import re

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.recipes.mdlm import animation
from samestep.recipes.mdlm.animation import AnimatedText, RevealTrace, glyphs, html_page
from samestep.recipes.mdlm.sampling import SamplingConfig, sample

BYTE = ByteTokenizer()
OPTIONS = SamplingConfig(max_new_tokens=3, steps=3, temperature=0.0)
PROMPT = torch.tensor([[72]])


class Rightmost(nn.Module):
    """Writes A, B, a line end, the rightmost first."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, BYTES.size)
        logits[:, torch.arange(4), torch.tensor([0, 65, 66, 10])] = torch.arange(4).float() + 1
        return logits


def test_a_trace_records_the_pass_and_probability_of_each_token() -> None:
    trace = RevealTrace(BYTES.mask)
    sample(Rightmost(), PROMPT, OPTIONS, seed=0, observe=trace)
    assert trace.when.tolist() == [[0, 3, 2, 1]]
    e = torch.arange(2, 5).double().exp()
    writable = BYTES.size - len(BYTES.forbidden(BYTES.size))
    assert trace.probability[0, 1:].tolist() == pytest.approx((e / (e + writable - 1)).tolist())


def test_characters_of_several_tokens_are_shown_at_the_first() -> None:
    tokens = [*"aé€".encode(), 0xC3, BYTES.mask, 0xFF, 98, BYTES.eos, 0x1B, 10, 0xE2]
    expected = ["a", "é", "", "€", "", "", "\ufffd", "░", "\ufffd", "b", "∎", "␛", "\n", "\ufffd"]
    assert glyphs(tokens, BYTE) == expected
    assert len(expected) == len(tokens)


def test_without_a_terminal_a_pass_is_a_line() -> None:
    out = io.StringIO()
    with animation.show_passes(BYTE, Console(file=out)) as observe:
        sample(Rightmost(), PROMPT, OPTIONS, seed=0, observe=observe)
    assert out.getvalue().splitlines() == [
        "pass 0/3  H░░░",
        "pass 1/3  H░░⏎",
        "pass 2/3  H░B⏎",
        "pass 3/3  HAB⏎",
    ]


def test_a_terminal_shows_every_pass_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(animation, "SECONDS_PER_PASS", 0.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=60)
    with animation.show_passes(BYTE, console) as observe:
        sample(Rightmost(), PROMPT.expand(2, -1), OPTIONS, seed=0, observe=observe)
    shown = out.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert [f"pass {done}/3" in plain for done in range(4)] == [True] * 4
    assert plain.count("2 of 6 tokens") == 1
    assert plain.count("H░B") == 2
    assert shown.rindex("\x1b[2K") > shown.rindex("tokens")


def texts_in(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    texts: list[dict[str, object]] = json.loads(found[1])
    return texts


def test_the_page_holds_any_text() -> None:
    nasty = ["</script>", "<!--", "<!--NOTE-->", "\\u003c", "é", '"', "\u2028"]
    text = AnimatedText("a <b> title", nasty, [1] * 7, [0, 1, 2, 3, 3, 2, 1], [1.0, 0.5, 1e-9, 1, 1, 1, 1])
    page = html_page([text, text], "x < y & z", "<!--TEXTS--> and a note")
    assert texts_in(page)[1] == {
        "title": "a <b> title",
        "glyphs": nasty,
        "tokens": [1] * 7,
        "when": [0, 1, 2, 3, 3, 2, 1],
        "probability": [1.0, 0.5, 1e-9, 1, 1, 1, 1],
    }
    assert "<title>x &lt; y &amp; z</title>" in page
    assert "&lt;!--TEXTS--&gt; and a note" in page
    assert page.count("</script>") == 2


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = html_page([AnimatedText("", ["a"], [97], [1], [0.5])], "t", "n")
    assert not re.search(r"https?:|src=|@import|url\(|<link|fetch\(|import ", page)
    assert "<!--" not in page
