"""What there is to see of a diffusion: which token came in which pass, how sure the network was, and how it reads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from samestep.data.vocabulary import Tokenizer
from samestep.recipes.mdlm.sampling import Look

HIDDEN = -1
"""The pass of a token that is still hidden; 0 is that of a token that was given."""
SPECIAL = "∎"
"""How an end of a text or a turn, or a header, is shown."""
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"}
"""Signs for what a terminal would obey and a page would swallow."""
BROKEN = "\ufffd"
LONGEST_LETTER = 4
"""Bytes of the longest letter in UTF-8, hence tokens that may share one."""


class Trace:
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
