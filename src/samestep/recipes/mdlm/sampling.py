"""Writing text: start from masked tokens, and reveal a few more of them with every pass.

Each pass drafts all masked tokens of the current block, keeps the surest drafts (or random ones) and masks the rest
again; what was revealed stays. With a block length the text grows from left to right, block by block; without one it is
a single block. Every draw is a function of (seed, pass, the row's id, the masked token's number), so a row does not
depend on the rows it is batched with.

Only the positions that are asked for are ever looked at, and a vocabulary's worth of float64 is made for a few of them
at a time: with 126 thousand tokens, noise for a whole row of them would fill a GPU.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.tokenizer.vocabulary import BYTES, Vocabulary

DRAFT = noise.purpose("mdlm.draft")
AT_ONCE = 2**24
"""Numbers that are treated in float64 at once: 128 MiB, a few times over."""

Positions = tuple[Tensor, ...]
"""Row and column of each place, [places] each."""


def logits_at(
    module: nn.Module, tokens: Tensor, places: Positions, *, prompt: Tensor, mask: int, cfg_scale: float = 0.0
) -> Tensor:
    """The network's logits [places, vocabulary]; with `cfg_scale` pushed away from what it says without the prompt.

    `prompt` tells which of the tokens [rows, length] were given; without guidance it makes no difference.
    """
    logits: Tensor = module(tokens)[places]
    if not cfg_scale:
        return logits
    blind: Tensor = module(tokens.masked_fill(prompt, mask))[places]
    exact = torch.promote_types(logits.dtype, torch.float32)
    # The same as blind + (cfg_scale + 1) * (logits - blind).
    return logits.to(exact) + cfg_scale * (logits.to(exact) - blind.to(exact))


def draft(
    logits: Tensor, forbidden: Sequence[int], temperature: float, key: tuple[int, ...], where: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """A token for each place [places] and the logarithm of its probability, as the network has it, in float64.

    Drawn from softmax(logits / temperature) by adding Gumbel noise in float64, since float32 would clip its tail; the
    noise is keyed by `key` and by each of `where` [places]. Temperature 0 takes the likeliest, with no noise at all.
    """
    banned = torch.tensor(list(forbidden), dtype=torch.int64, device=logits.device)
    vocabulary = torch.arange(logits.shape[1], device=logits.device)
    tokens, sureness = [], []
    for part in _parts(logits):
        scores = logits[part].double().index_fill(1, banned, -torch.inf)
        noisy = scores
        if temperature > 0:
            noisy = noise.gumbel(*key, *(one[part, None] for one in where), vocabulary).mul_(temperature).add_(scores)
        tokens.append(noisy.argmax(1))
        sureness.append(scores.gather(1, tokens[-1][:, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(tokens), torch.cat(sureness)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """What the logits [places, vocabulary] give to `tokens` [places], in float64, normalised over all of them."""
    found = []
    for part in _parts(logits):
        scores = logits[part].double()
        found.append(scores.gather(1, tokens[part, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(found)


def _parts(logits: Tensor) -> Iterator[slice]:
    """The places, a few at a time."""
    places, size = logits.shape
    step = max(1, AT_ONCE // size)
    yield from (slice(at, at + step) for at in range(0, places, step))


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
    cfg_scale: float = 0.0
    """Classifier-free guidance: how far to go beyond what the prompt changes in the logits; 0 is none."""
    eos: Literal["free", "last", "never"] = "free"
    """Ends of text: free, last (EOS and EoT are kept only when no other draft is left), or never (no EOS)."""
    stop: bool = True
    """Once a block holds an EOS or EoT, fill what follows with EOS: it would not be shown."""

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out, before a network is loaded."""
        if self.length < 1:
            raise UserError(f"Set length to 1 or more; it is {self.length}.")
        if self.block_length is not None and self.block_length < 1:
            raise UserError(f"Set block_length to 1 or more, or to null; it is {self.block_length}.")
        if self.steps < self.blocks:
            raise UserError(f"Set steps to {self.blocks} or more, one a block; it is {self.steps}.")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"Set temperature to 0 or more; it is {self.temperature}.")
        if not 0 <= self.cfg_scale < float("inf"):
            raise UserError(f"Set cfg_scale to 0 or more; it is {self.cfg_scale}.")

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.length // (self.block_length or self.length))


@dataclass(frozen=True)
class Look:
    """What somebody who watches sees after a pass; before the first one nothing is revealed yet."""

    done: int
    """Passes so far."""
    passes: int
    """Passes in all."""
    tokens: Tensor
    """The rows as they are now; copy what is to be kept, since later passes write into them."""
    places: Tensor
    """Columns that this pass revealed, [rows, any]."""
    probability: Tensor
    """What the network gave each of them, [rows, any]."""


Observer = Callable[[Look], None]


@torch.no_grad()
def fill(
    module: nn.Module,
    tokens: Tensor,
    hidden: Tensor,
    options: SamplingConfig,
    *,
    seed: int,
    ids: Tensor,
    vocabulary: Vocabulary,
    observe: Observer | None = None,
) -> Tensor:
    """Write the hidden places of `tokens` [rows, length], as many in each row, and nothing else.

    Noise is keyed by `ids` [rows], so a row does not depend on the rows it is batched with.
    """
    rows, length = tokens.shape
    places = hidden.nonzero()[:, 1].view(rows, -1)
    blocks = plan(replace(options, length=places.shape[1]))
    passes = sum(len(reveals) for _, _, reveals in blocks)
    pen = _Drafter(module, options, vocabulary, seed, ids, prompt=~hidden)
    tokens = tokens.masked_fill(hidden, vocabulary.mask)
    is_tail = places[:, 0] + places.shape[1] == length  # a gap that ends does not end the text behind it
    over = torch.zeros(rows, dtype=torch.bool, device=tokens.device)
    done = 0
    if observe:
        observe(Look(done, passes, tokens, places[:, :0], places[:, :0].double()))
    for first, last, reveals in blocks:
        left = torch.arange(first, last, device=tokens.device).expand(rows, -1)  # numbers of what is still hidden
        for reveal in reveals:
            drafts, sureness, score = pen.draft(tokens, places.gather(1, left), left, done)
            drafts = drafts.masked_fill(over[:, None], vocabulary.eos)
            # A stable sort settles ties alike on every device; what is left stays in order.
            kept, rest = score.argsort(dim=1, descending=True, stable=True).tensor_split([reveal], dim=1)
            at = places.gather(1, left.gather(1, kept))
            tokens.scatter_(1, at, drafts.gather(1, kept))
            left = left.gather(1, rest.sort(dim=1).values)
            done += 1
            if observe:
                observe(Look(done, passes, tokens, at, sureness.gather(1, kept).exp()))
        if options.stop and last < places.shape[1]:
            over |= is_tail & pen.is_end(tokens.gather(1, places[:, first:last])).any(1)
            if bool(over.all()):
                return tokens.scatter_(1, places[:, last:], vocabulary.eos)
    return tokens


@dataclass(frozen=True)
class _Drafter:
    """The network and what guides its hand."""

    module: nn.Module
    options: SamplingConfig
    vocabulary: Vocabulary
    seed: int
    ids: Tensor
    prompt: Tensor

    def draft(self, tokens: Tensor, at: Tensor, left: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """For the columns `at`, whose numbers are `left`: drafts, log-probabilities, and the score to keep them by."""
        options, vocabulary = self.options, self.vocabulary
        row = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(at).flatten()
        logits = logits_at(
            self.module,
            tokens,
            (row, at.flatten()),
            prompt=self.prompt,
            mask=vocabulary.mask,
            cfg_scale=options.cfg_scale,
        )
        forbidden = vocabulary.forbidden(logits.shape[-1])
        if options.eos == "never":
            forbidden = [*forbidden, vocabulary.eos]
        where = (self.ids[row], left.flatten())
        flat = draft(logits, forbidden, options.temperature, (self.seed, DRAFT, step), where)
        drafts, sureness = (one.view_as(at) for one in flat)
        score = sureness
        if options.remasking == "random":
            score = noise.uniform(self.seed, KEEP, step, self.ids[:, None], left, dtype=torch.float64)
        if options.eos == "last":
            score = score.masked_fill(self.is_end(drafts), -torch.inf)
        return drafts, sureness, score

    def is_end(self, tokens: Tensor) -> Tensor:
        """Which tokens end a text or a turn."""
        ended = tokens == self.vocabulary.eos
        return ended if self.vocabulary.eot is None else ended | (tokens == self.vocabulary.eot)


def sample(
    module: nn.Module,
    prompts: Tensor,
    options: SamplingConfig,
    *,
    seed: int,
    ids: Tensor | None = None,
    vocabulary: Vocabulary = BYTES,
    observe: Observer | None = None,
) -> Tensor:
    """Go on from `prompts` [rows, any] by exactly `options.length` tokens each; returns prompt and continuation.

    Noise is keyed by `ids` [rows], by default 0, 1, ...
    """
    rows, start = prompts.shape
    tokens = torch.cat((prompts, prompts.new_full((rows, options.length), vocabulary.mask)), dim=1)
    hidden = (torch.arange(tokens.shape[1], device=tokens.device) >= start).expand_as(tokens)
    ids = torch.arange(rows, device=prompts.device) if ids is None else ids
    return fill(module, tokens, hidden, options, seed=seed, ids=ids, vocabulary=vocabulary, observe=observe)


def until_end(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    """What was written up to the first end of a text or of a turn, without it."""
    ends = (vocabulary.eos, vocabulary.eot)
    return tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))]


def plan(options: SamplingConfig) -> list[tuple[int, int, list[int]]]:
    """The blocks (first, last) of hidden tokens, and how many of its tokens each pass over a block reveals.

    Passes are spread evenly over blocks and tokens evenly over passes; one that would reveal nothing is left out.
    """
    size = options.block_length or options.length
    found = []
    for block, turns in enumerate(evenly(options.steps, options.blocks)):
        first, last = block * size, min((block + 1) * size, options.length)
        found.append((first, last, evenly(last - first, min(turns, last - first))))
    return found


def evenly(total: int, parts: int) -> list[int]:
    """`total` as `parts` whole numbers that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def alike(shapes: Sequence[Hashable], size: int) -> list[list[int]]:
    """The numbers of things in batches of at most `size`, those of one batch having one shape.

    The network then sees no padding, so a row does not depend on the rows beside it.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(number)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]
