"""Sampling text: start from masked tokens, and reveal a few more of them with every pass.

Each pass drafts all masked tokens of the current block, keeps the most confident drafts (or random ones) and masks the
rest again; revealed tokens stay. With a block length the text grows from left to right, block by block; without one it
is a single block. Every draw is a function of (seed, pass, the row's id, the masked token's number), so a row does not
depend on the rows it is batched with.

Only masked positions are computed, and float64 scores over the vocabulary are made for a few of them at a time: with
126 thousand tokens, noise for a whole row would fill a GPU.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from samestep import UserError, World, noise
from samestep.core.config.bounds import Count, NotNegative
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import print_error
from samestep.data.tokenizer.vocabulary import BYTES, Vocabulary
from samestep.models.wide import wide

DRAFT = noise.purpose("mdlm.draft")
KEEP = noise.purpose("mdlm.keep")
AT_ONCE = 2**24
"""Numbers that are in float64 at once: a few times 128 MiB."""

Positions = tuple[Tensor, ...]
"""Row and column of each position, [positions] each."""


def logits_at(
    module: nn.Module, tokens: Tensor, positions: Positions, *, prompt: Tensor, mask: int, cfg_scale: float = 0.0
) -> Tensor:
    """The network's logits [positions, vocabulary]; with `cfg_scale`, guided away from those without the prompt.

    `prompt` marks which of the tokens [rows, length] were given; without guidance it makes no difference.
    """
    logits: Tensor = module(tokens)[positions]
    if not cfg_scale:
        return logits
    unconditional: Tensor = module(tokens.masked_fill(prompt, mask))[positions]
    # The same as unconditional + (cfg_scale + 1) * (logits - unconditional).
    return wide(logits) + cfg_scale * (wide(logits) - wide(unconditional))


def draft(
    logits: Tensor, forbidden: Sequence[int], temperature: float, key: tuple[int, ...], where: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """A token for each position [positions] and the network's log-probability of it, in float64.

    Sampled from softmax(logits / temperature) with Gumbel noise that is keyed by `key` and by each of `where`
    [positions]. Temperature 0 takes the likeliest token, without noise.
    """
    banned = torch.tensor(list(forbidden), dtype=torch.int64, device=logits.device)
    tokens, confidence = [], []
    for part in _parts(logits):
        scores = logits[part].double().index_fill(1, banned, -torch.inf)
        noisy = noise.add_gumbel(scores, *key, *(one[part, None] for one in where), temperature=temperature)
        tokens.append(noisy.argmax(1))
        confidence.append(scores.gather(1, tokens[-1][:, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(tokens), torch.cat(confidence)


def log_probability(logits: Tensor, tokens: Tensor, without: Sequence[int] = ()) -> Tensor:
    """The log-probability of `tokens` [positions] under logits [positions, vocabulary], in float64; as if there were no
    tokens `without`."""
    banned = torch.tensor(list(without), dtype=torch.int64, device=logits.device)
    found = []
    for part in _parts(logits):
        scores = logits[part].double().index_fill(1, banned, -torch.inf)
        found.append(scores.gather(1, tokens[part, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(found)


def _parts(logits: Tensor) -> Iterator[slice]:
    """The positions, a few at a time."""
    positions, size = logits.shape
    step = max(1, AT_ONCE // size)
    yield from (slice(at, at + step) for at in range(0, positions, step))


@dataclass(frozen=True)
class SamplingConfig(CheckedConfig):
    """How text is sampled from a trained network."""

    max_new_tokens: Count = 96
    """Tokens to generate, an end of the text included."""
    steps: Count | None = None
    """Forward passes in all; each reveals an equal share of the tokens. null: one for each token."""
    block_length: Count | None = None
    """Write from left to right in blocks of this many tokens; null is one block, all positions at once."""
    temperature: NotNegative = 0.7
    """0 takes the likeliest token, 1 samples from the network's own probabilities."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Which drafts are masked again after a pass: low_confidence (keep the most confident) or random."""
    cfg_scale: NotNegative = 0.0
    """Classifier-free guidance: how far to exaggerate the prompt's effect on the logits; 0 is no guidance."""
    eos: Literal["free", "last", "never"] = "free"
    """Ends of text: free, last (EOS and EoT are kept only when no other draft is left, and confidence is measured among
    the other tokens), or never (no EOS)."""
    stop: bool = True
    """Once a block holds an EOS or EoT, fill what follows with EOS: it would not be shown."""

    def __post_init__(self) -> None:
        """Refuse invalid settings before a network is loaded."""
        if self.passes < self.blocks:
            raise UserError(f"Set steps to {self.blocks} or more, one a block; it is {self.steps}.")

    @property
    def passes(self) -> int:
        return self.max_new_tokens if self.steps is None else self.steps

    @property
    def blocks(self) -> int:
        return -(-self.max_new_tokens // (self.block_length or self.max_new_tokens))


@dataclass(frozen=True)
class SamplingPass:
    """What an observer gets after each pass; also once before the first one, when nothing is revealed."""

    done: int
    passes: int
    """In all."""
    tokens: Tensor
    """The rows at this point; copy them to keep them, since later passes write into this tensor."""
    columns: Tensor
    """Columns that this pass revealed, [rows, any]."""
    probability: Tensor
    """The network's probability of each revealed token, [rows, any]."""


Observer = Callable[[SamplingPass], None]


@torch.no_grad()
def fill(
    module: nn.Module,
    tokens: Tensor,
    masked: Tensor,
    options: SamplingConfig,
    *,
    seed: int,
    ids: Tensor,
    vocabulary: Vocabulary,
    observe: Observer | None = None,
) -> Tensor:
    """Fill in the masked positions of `tokens` [rows, length], which are equally many in each row, and nothing else.

    Noise is keyed by `ids` [rows], so a row does not depend on the rows it is batched with.
    """
    rows, length = tokens.shape
    columns = masked.nonzero()[:, 1].view(rows, -1)
    blocks = plan(replace(options, max_new_tokens=columns.shape[1]))
    passes = sum(len(reveals) for _, _, reveals in blocks)
    sampler = _DraftSampler(module, options, vocabulary, seed, ids, prompt=~masked)
    tokens = tokens.masked_fill(masked, vocabulary.required_mask)
    is_tail = columns[:, 0] + columns.shape[1] == length  # an end inside a gap does not end the text after the gap
    ended = torch.zeros(rows, dtype=torch.bool, device=tokens.device)
    done = 0
    if observe:
        observe(SamplingPass(done, passes, tokens, columns[:, :0], columns[:, :0].double()))
    for first, last, reveals in blocks:
        left = torch.arange(first, last, device=tokens.device).expand(rows, -1)  # numbers of the tokens still masked
        for reveal in reveals:
            drafts, confidence, score = sampler.draft(tokens, columns.gather(1, left), left, done)
            drafts = drafts.masked_fill(ended[:, None], vocabulary.eos)
            # A stable sort breaks ties in the same way on every device; what is left stays in order.
            kept, rest = score.argsort(dim=1, descending=True, stable=True).tensor_split([reveal], dim=1)
            at = columns.gather(1, left.gather(1, kept))
            tokens.scatter_(1, at, drafts.gather(1, kept))
            left = left.gather(1, rest.sort(dim=1).values)
            done += 1
            if observe:
                observe(SamplingPass(done, passes, tokens, at, confidence.gather(1, kept).exp()))
        if options.stop and last < columns.shape[1]:
            ended |= is_tail & sampler.is_end(tokens.gather(1, columns[:, first:last])).any(1)
            if bool(ended.all()):
                return tokens.scatter_(1, columns[:, last:], vocabulary.eos)
    return tokens


@dataclass(frozen=True)
class _DraftSampler:
    """Drafts tokens for masked positions, and scores the drafts."""

    module: nn.Module
    options: SamplingConfig
    vocabulary: Vocabulary
    seed: int
    ids: Tensor
    prompt: Tensor

    def draft(self, tokens: Tensor, at: Tensor, left: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """For the columns `at`, masked tokens number `left`: drafts, log-probabilities, and scores to rank them by."""
        options, vocabulary = self.options, self.vocabulary
        row = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(at).flatten()
        logits = logits_at(
            self.module,
            tokens,
            (row, at.flatten()),
            prompt=self.prompt,
            mask=vocabulary.required_mask,
            cfg_scale=options.cfg_scale,
        )
        forbidden = vocabulary.forbidden(logits.shape[-1])
        if options.eos == "never":
            forbidden = [*forbidden, vocabulary.eos]
        where = (self.ids[row], left.flatten())
        flat = draft(logits, forbidden, options.temperature, (self.seed, DRAFT, step), where)
        drafts, confidence = (one.view_as(at) for one in flat)
        score = confidence
        if options.remasking == "random":
            score = noise.uniform(self.seed, KEEP, step, self.ids[:, None], left, dtype=torch.float64)
        elif options.eos == "last":  # confidence among the tokens that end nothing, as LLaDA has it
            score = log_probability(logits, drafts.flatten(), [*forbidden, *vocabulary.ends]).view_as(at)
        if options.eos == "last":
            score = score.masked_fill(self.is_end(drafts), -torch.inf)
        return drafts, confidence, score

    def is_end(self, tokens: Tensor) -> Tensor:
        """Which tokens end a text or a turn."""
        return torch.isin(tokens, tokens.new_tensor(self.vocabulary.ends))


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
    """Continue `prompts` [rows, any] by exactly `options.max_new_tokens` tokens each; returns prompt and continuation.

    Noise is keyed by `ids` [rows], by default 0, 1, ...
    """
    rows, start = prompts.shape
    tokens = torch.cat((prompts, prompts.new_full((rows, options.max_new_tokens), vocabulary.required_mask)), dim=1)
    masked = (torch.arange(tokens.shape[1], device=tokens.device) >= start).expand_as(tokens)
    ids = torch.arange(rows, device=prompts.device) if ids is None else ids
    return fill(module, tokens, masked, options, seed=seed, ids=ids, vocabulary=vocabulary, observe=observe)


def until_end(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens before the first end of a text or of a turn."""
    return tokens[: next((at for at, token in enumerate(tokens) if token in vocabulary.ends), len(tokens))]


def say_tokens_a_pass(options: SamplingConfig, length: int, world: World) -> None:
    """Say on rank 0 that a pass reveals several of `length` tokens, if it does."""
    each = -(-length // (options.steps or length))
    if each > 1 and world.is_main:
        print_error(
            f"up to {each} tokens a pass: faster, and worse than one at a time, which is steps={length} or steps=null"
        )


def plan(options: SamplingConfig) -> list[tuple[int, int, list[int]]]:
    """The blocks (first, last) of masked tokens, and how many of its tokens each pass over a block reveals.

    Passes are spread evenly over blocks and tokens evenly over passes; one that would reveal nothing is left out.
    """
    size = options.block_length or options.max_new_tokens
    found = []
    for block, turns in enumerate(evenly(options.passes, options.blocks)):
        first, last = block * size, min((block + 1) * size, options.max_new_tokens)
        found.append((first, last, evenly(last - first, min(turns, last - first))))
    return found


def evenly(total: int, parts: int) -> list[int]:
    """`total` as `parts` whole numbers that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def batches_by_shape(shapes: Sequence[Hashable], size: int) -> list[list[int]]:
    """Indices into `shapes` in batches of at most `size`, each batch of one shape.

    The network then sees no padding, so a row does not depend on the rows beside it.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(number)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]
