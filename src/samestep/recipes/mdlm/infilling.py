"""A page: text as it was given, and places in it that are to be written; a prompt is a page with one gap at its end.

"To be, or [[3]], that is"        a gap of three tokens
"To be, or ___, that is"          a gap of `length` tokens, with the marker ___
"To be, or "                      no gap: the text goes on for `length` tokens
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.data.prepared.chats import Message, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.recipes.mdlm.sampling import Observer, SamplingConfig, fill, until_end

NUMBERED = re.compile(r"\[\[(\d+)\]\]")
"""A gap that says how many tokens it has."""


@dataclass(frozen=True)
class Given:
    """A part of a page that stays as it is."""

    tokens: list[int]
    text: str


@dataclass(frozen=True)
class Page:
    """Parts in order: what is given, and the number of tokens in each gap."""

    parts: Sequence[Given | int]

    def tokens(self, mask: int) -> list[int]:
        """The page with its gaps hidden."""
        return [token for part in self.parts for token in ([mask] * part if isinstance(part, int) else part.tokens)]

    def hidden(self) -> list[bool]:
        """Which of its tokens are to be written."""
        return [isinstance(part, int) for part in self.parts for _ in range(self._size(part))]

    def shape(self) -> tuple[int, int]:
        """Tokens in all, and hidden ones."""
        return len(self.hidden()), sum(self.hidden())

    def read(self, tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[str, list[str]]:
        """The text of a written page, in which the given parts are as they were given; and that of each gap alone.

        A gap reads up to its first end of a text or of a turn.
        """
        pieces, gaps, at = [], [], 0
        for part in self.parts:
            if isinstance(part, int):
                written = until_end(list(tokens[at : at + part]), tokenizer.vocabulary)
                gaps.append(tokenizer.decode(written))
                pieces.append(gaps[-1])
            else:
                pieces.append(part.text)
            at += self._size(part)
        return "".join(pieces), gaps

    def visible(self, tokens: Sequence[int], vocabulary: Vocabulary) -> int:
        """How many tokens there are to see: all, or those up to the end of the text in a gap that comes last."""
        last = self.parts[-1]
        if not isinstance(last, int):
            return len(tokens)
        given = len(tokens) - last
        return min(len(tokens), given + len(until_end(list(tokens[given:]), vocabulary)) + 1)

    @staticmethod
    def _size(part: Given | int) -> int:
        return part if isinstance(part, int) else len(part.tokens)


def page_of(prompt: str, length: int, tokenizer: Tokenizer, gap: str | None = None) -> Page:
    """The page that a prompt describes; a marker `gap` takes the place of numbered gaps."""
    if gap == "":
        raise UserError("Give --gap a marker that stands for the missing text, such as ___.")
    # Split at a captured number, the odd pieces are the sizes of gaps.
    pieces = NUMBERED.split(prompt) if gap is None else re.split(f"({re.escape(gap)})", prompt)
    parts: list[Given | int] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append(_gap_size(piece) if gap is None else length)
        elif piece:
            parts.append(Given(tokenizer.encode(piece), piece))
    return Page(parts if len(pieces) > 1 else [*parts, length])


def _gap_size(digits: str) -> int:
    if int(digits) < 1:
        raise UserError(f"Give a gap at least one token, such as [[8]]; one of them is [[{digits}]].")
    return int(digits)


def chat_page(prompt: str, length: int, tokenizer: Tokenizer) -> Page:
    """A page on which the prompt was asked and is to be answered; only the answer is its text."""
    return Page([Given(chat_prompt(tokenizer, [Message("user", prompt)]), ""), length])


def fill_pages(
    module: nn.Module,
    pages: Sequence[Page],
    options: SamplingConfig,
    *,
    seed: int,
    ids: Sequence[int],
    vocabulary: Vocabulary,
    observe: Observer | None = None,
) -> list[list[int]]:
    """Write pages of one shape; noise is keyed by `ids`, and gaps are as long as the pages say."""
    device = next(module.parameters()).device
    tokens = torch.tensor([page.tokens(vocabulary.mask) for page in pages], device=device)
    hidden = torch.tensor([page.hidden() for page in pages], device=device)
    keys = torch.tensor(list(ids), device=device)
    written: list[list[int]] = fill(
        module, tokens, hidden, options, seed=seed, ids=keys, vocabulary=vocabulary, observe=observe
    ).tolist()
    return written
