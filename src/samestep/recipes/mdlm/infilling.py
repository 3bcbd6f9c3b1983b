"""Infilling: a template is given text with gaps to fill in; a plain prompt is a template with one gap at its end.

"To be, or [[3]], that is"        a gap of three tokens
"To be, or ___, that is"          a gap of `length` tokens, with the marker ___
"To be, or "                      no gap: the text is continued by `length` tokens
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from samestep import UserError
from samestep.data.prepared.chats import ChatMessage, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.recipes.mdlm.sampling import Observer, SamplingConfig, fill, until_end

NUMBERED = re.compile(r"\[\[(\d+)\]\]")
"""A gap with its number of tokens."""


@dataclass(frozen=True)
class GivenText:
    """A part of a template that stays unchanged."""

    tokens: list[int]
    text: str


@dataclass(frozen=True)
class Template:
    """Parts in order: given text, and for each gap its number of tokens."""

    parts: Sequence[GivenText | int]

    def tokens(self, mask: int) -> list[int]:
        """The tokens of the template, with the mask token in its gaps."""
        return [token for part in self.parts for token in ([mask] * part if isinstance(part, int) else part.tokens)]

    def masked(self) -> list[bool]:
        """Which of its tokens are in a gap."""
        return [isinstance(part, int) for part in self.parts for _ in range(self._size(part))]

    def shape(self) -> tuple[int, int]:
        """The number of all tokens, and of masked ones."""
        return len(self.masked()), sum(self.masked())

    def read(self, tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[str, list[str]]:
        """The text of a filled-in template, with the given parts unchanged; and the text of each gap.

        The text of a gap stops at its first end of a text or of a turn.
        """
        pieces, gaps, at = [], [], 0
        for part in self.parts:
            if isinstance(part, int):
                filled = until_end(list(tokens[at : at + part]), tokenizer.vocabulary)
                gaps.append(tokenizer.decode(filled))
                pieces.append(gaps[-1])
            else:
                pieces.append(part.text)
            at += self._size(part)
        return "".join(pieces), gaps

    def visible_length(self, tokens: Sequence[int], vocabulary: Vocabulary) -> int:
        """How many tokens to show: all, or those up to the end of the text if a gap comes last."""
        last = self.parts[-1]
        if not isinstance(last, int):
            return len(tokens)
        given = len(tokens) - last
        return min(len(tokens), given + len(until_end(list(tokens[given:]), vocabulary)) + 1)

    @staticmethod
    def _size(part: GivenText | int) -> int:
        return part if isinstance(part, int) else len(part.tokens)


def parse_template(prompt: str, length: int, tokenizer: Tokenizer, gap: str | None = None) -> Template:
    """The template of a prompt; with a marker `gap`, only that marks gaps, and numbers do not."""
    if gap == "":
        raise UserError("Give --gap a marker that stands for the missing text, such as ___.")
    # Split at a captured number, the odd pieces are the sizes of gaps.
    pieces = NUMBERED.split(prompt) if gap is None else re.split(f"({re.escape(gap)})", prompt)
    parts: list[GivenText | int] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append(_gap_size(piece) if gap is None else length)
        elif piece:
            parts.append(GivenText(tokenizer.encode(piece), piece))
    return Template(parts if len(pieces) > 1 else [*parts, length])


def _gap_size(digits: str) -> int:
    if int(digits) < 1:
        raise UserError(f"Give a gap at least one token, such as [[8]]; one of them is [[{digits}]].")
    return int(digits)


def answer_template(prompt: str, length: int, tokenizer: Tokenizer) -> Template:
    """A template of a chat: the prompt as the user's message, and a gap for the answer, which alone is its text."""
    return Template([GivenText(chat_prompt(tokenizer, [ChatMessage("user", prompt)]), ""), length])


def fill_templates(
    module: nn.Module,
    templates: Sequence[Template],
    options: SamplingConfig,
    *,
    seed: int,
    ids: Sequence[int],
    vocabulary: Vocabulary,
    observe: Observer | None = None,
) -> list[list[int]]:
    """Fill in templates of one shape; noise is keyed by `ids`, and `options.length` is ignored."""
    device = next(module.parameters()).device
    tokens = torch.tensor([template.tokens(vocabulary.required_mask) for template in templates], device=device)
    masked = torch.tensor([template.masked() for template in templates], device=device)
    keys = torch.tensor(list(ids), device=device)
    filled: list[list[int]] = fill(
        module, tokens, masked, options, seed=seed, ids=keys, vocabulary=vocabulary, observe=observe
    ).tolist()
    return filled
