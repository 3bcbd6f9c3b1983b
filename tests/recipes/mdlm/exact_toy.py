"""A toy language whose every conditional is known: what a bound or a likelihood estimates can be computed exactly."""

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from samestep.data.token_rows import TokenRows
from samestep.data.tokenizer.vocabulary import Vocabulary

TOY = Vocabulary(size=6, mask=3, eos=4, bos=5, silent=(5,))
LENGTH = 4


class ExactConditionals(nn.Module):
    """A distribution over four tokens given as a table, and its true conditionals given any visible tokens.

    For such a network the bound is tight: its expectation is the exact -log p of a row, whatever the order.
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64))  # changes nothing, but can be learned
        self.texts = torch.tensor(list(itertools.product(range(TOY.mask), repeat=LENGTH)))
        self.table = torch.softmax(1.5 * torch.randn(len(self.texts), generator=generator, dtype=torch.float64), 0)
        self.answers = self.conditionals(torch.tensor(list(itertools.product(range(TOY.mask + 1), repeat=LENGTH))))
        self.seen: list[Tensor] = []

    def conditionals(self, tokens: Tensor) -> Tensor:
        weights = self.fits(tokens, tokens < TOY.mask) * self.table
        each = torch.stack([weights @ (self.texts == token).double() for token in range(TOY.mask)], dim=-1)
        special = torch.zeros(*tokens.shape, TOY.size - TOY.mask, dtype=torch.float64)
        return torch.cat((each, special), dim=-1).log()

    def fits(self, tokens: Tensor, known: Tensor) -> Tensor:
        return ((self.texts == tokens[:, None, :]) | ~known[:, None, :]).all(-1)

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(tokens)
        size = tokens.shape[1]
        # What is masked, what is padding and what is not there are all unknown.
        digits = nn.functional.pad(tokens.clamp(max=TOY.mask), (0, LENGTH - size), value=TOY.mask)
        return self.answers[digits @ (TOY.mask + 1) ** torch.arange(LENGTH - 1, -1, -1)][:, :size] + self.bias

    def nll(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The exact negative log-probability of the first `length` tokens of each row."""
        tokens = nn.functional.pad(tokens, (0, LENGTH - tokens.shape[1]))
        first = torch.arange(LENGTH) < torch.arange(LENGTH + 1)[:, None]
        exact = torch.stack([(self.fits(self.texts, known[None]) * self.table).sum(1) for known in first])
        return -exact[lengths, tokens @ TOY.mask ** torch.arange(LENGTH - 1, -1, -1)].log()


class ToyRows(TokenRows):
    """Rows drawn from the toy's own distribution: texts, a few of them short, or prompts with answers."""

    def __init__(self, toy: ExactConditionals, size: int, sft: bool) -> None:
        drawn = torch.multinomial(toy.table, size, replacement=True, generator=torch.Generator().manual_seed(2))
        every = torch.arange(size)
        self.tokens = toy.texts[drawn]
        self.length, self.width, self.size = LENGTH, LENGTH, size * LENGTH
        self.real = torch.full((size,), LENGTH) if sft else LENGTH - (every % 50 == 0).long()
        self.prompt = every % 4 % 3 if sft else torch.zeros_like(every)
        self.size = int(self.real.sum())

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        chosen = torch.as_tensor(indices)
        length = self.real[chosen].clamp(max=self.width)
        return {"tokens": self.tokens[chosen, : self.width], "length": length, "prompt": self.prompt[chosen]}
