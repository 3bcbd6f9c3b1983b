"""Writing text: start from hidden tokens only, and reveal a few more of them with every pass.

Each pass drafts all hidden tokens of the current block, keeps the surest drafts (or random ones) and hides the rest
again. With a block length the text grows from left to right, block by block; without one it is a single block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.vocabulary import BYTES, ByteTokenizer, Tokenizer, Vocabulary

DRAFT = noise.purpose("mdlm.draft")
KEEP = noise.purpose("mdlm.keep")


@dataclass(frozen=True)
class SamplingConfig:
    """How text is written from a trained network."""

    length: int = 96
    """Tokens to write."""
    steps: int = 48
    """Forward passes in all; each reveals an equal share of the tokens."""
    block_length: int | None = None
    """Write from left to right in blocks of this many tokens; null is one block, all positions at once."""
    temperature: float = 0.7
    """0 takes the likeliest token, 1 draws from the network's own probabilities."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Which drafts are hidden again after a pass: low_confidence (keep the surest) or random."""

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out, before a network is loaded."""
        block = self.length if self.block_length is None else self.block_length
        if self.length < 1:
            raise UserError(f"Set length to 1 or more; it is {self.length}.")
        if not 1 <= block <= self.length:
            raise UserError(f"Set block_length between 1 and length={self.length}, or to null; it is {block}.")
        if self.steps < -(-self.length // block):
            raise UserError(f"Set steps to {-(-self.length // block)} or more, one a block; it is {self.steps}.")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"Set temperature to 0 or more; it is {self.temperature}.")


@torch.no_grad()
def sample(
    module: nn.Module,
    prompts: Tensor,
    options: SamplingConfig,
    *,
    seed: int,
    ids: Tensor | None = None,
    vocabulary: Vocabulary = BYTES,
) -> Tensor:
    """Go on from `prompts` [rows, any] by exactly `options.length` tokens each; returns prompt and continuation.

    Noise is keyed by `ids` [rows] (by default 0, 1, ...), so a row does not depend on the rows it is batched with.
    """
    rows, start = prompts.shape
    ids = torch.arange(rows, device=prompts.device) if ids is None else ids
    hidden = torch.full((rows, options.length), vocabulary.mask, dtype=prompts.dtype, device=prompts.device)
    tokens = torch.cat((prompts, hidden), dim=1)
    for step, (first, last, reveal) in enumerate(passes(options)):
        block = tokens[:, start + first : start + last]
        logits = module(tokens)[:, start + first : start + last].double()
        logits[..., vocabulary.forbidden(logits.shape[-1])] = -torch.inf
        positions = torch.arange(first, last, device=tokens.device)
        drafts = _draft(logits, options.temperature, (seed, DRAFT, step), ids, positions)
        if options.remasking == "random":
            sureness = noise.uniform(seed, KEEP, step, ids[:, None], positions, dtype=torch.float64)
        else:
            sureness = logits.softmax(-1).gather(-1, drafts[..., None])[..., 0]
        # A token once revealed stays; a stable sort settles ties alike on every device.
        sureness = sureness.masked_fill(block != vocabulary.mask, -torch.inf)
        kept = sureness.argsort(dim=1, descending=True, stable=True)[:, :reveal]
        block.scatter_(1, kept, drafts.gather(1, kept))
    return tokens


def write(
    module: nn.Module,
    prompt: str,
    samples: int,
    options: SamplingConfig,
    *,
    seed: int,
    tokenizer: Tokenizer = ByteTokenizer(),  # noqa: B008
) -> list[str]:
    """Several continuations of one prompt as text, without the prompt."""
    device = next(module.parameters()).device
    prompts = torch.tensor([tokenizer.encode(prompt)] * samples, dtype=torch.int64, device=device).view(samples, -1)
    written = sample(module, prompts, options, seed=seed, vocabulary=tokenizer.vocabulary)[:, prompts.shape[1] :]
    return [tokenizer.decode(row) for row in written.tolist()]


def passes(options: SamplingConfig) -> Iterator[tuple[int, int, int]]:
    """The plan: per forward pass, the block (first, last) it works on and how many of its tokens it reveals.

    Passes are spread evenly over blocks and tokens evenly over passes; one that would reveal nothing is left out.
    """
    size = options.length if options.block_length is None else options.block_length
    blocks = -(-options.length // size)
    for block, turns in enumerate(evenly(options.steps, blocks)):
        first, last = block * size, min((block + 1) * size, options.length)
        for reveal in evenly(last - first, min(turns, last - first)):
            yield first, last, reveal


def evenly(total: int, parts: int) -> list[int]:
    """`total` as `parts` whole numbers that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _draft(logits: Tensor, temperature: float, key: tuple[int, ...], ids: Tensor, positions: Tensor) -> Tensor:
    """Draw from softmax(logits / temperature) by adding Gumbel noise, in float64: float32 would clip its tail."""
    if temperature > 0:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        gumbel = noise.gumbel(*key, ids[:, None, None], positions[:, None], vocabulary, dtype=torch.float64)
        logits = logits + temperature * gumbel
    return logits.argmax(-1)
