"""Masked diffusion: mask a random share of a row, predict the masked tokens, weigh the loss by one over the share.

A row draws a time t in (0, 1), masks each token with probability p = (1 - least) t + least, and scores

    nll(row) = sum over its masked tokens of -log q(token | the unmasked tokens) / p

whose expectation bounds the row's negative log-likelihood from above. In pre-training a row weighs ALL its tokens:
dividing by the number of masked ones would undo the 1/p and bias the estimate. In fine-tuning on answers (SFT) the
leading `prompt` tokens of a row are never masked and never counted. The end-of-text tokens that fill the row up to the
width of its step are part of the answer: that is how a network learns where to stop. Validation counts an answer up to
its first end token, and hides what follows, which would tell where the answer ends. Every draw is a function of (seed,
epoch, index, position), or of the step, hence the same on any number of ranks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep import Batch, MicroBatches, noise
from samestep.core.config.bounds import Count, Decay, Share
from samestep.core.config.checked import CheckedConfig
from samestep.data.data_file import DataFile
from samestep.data.token_rows import TokenRows, widths_between
from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.models.wide import wide

MASK = noise.purpose("mdlm.hide")  # the name is part of the key: another one would change every run's masks
TIME = noise.purpose("mdlm.time")
CHANGED = noise.purpose("mdlm.changed_step")
WIDTH = noise.purpose("mdlm.width")


@dataclass(frozen=True)
class ObjectiveConfig(CheckedConfig):
    """How tokens are masked, how rows are weighed, and how validation averages over it."""

    least: Decay = 1e-3
    """Smallest share of masked tokens: a time t in (0, 1) masks a share of (1 - least) t + least."""
    antithetic: bool = True
    """Pair the rows of each global batch, and give a pair the times t and 1 - t, so that a step covers all times more
    evenly."""
    cut_rows: Share = 0.01
    """Share of pre-training rows that are cut to a random length, so that short texts are learned too; LLaDA's 0.01.
    All rows of a step are cut alike, to fewer tokens."""
    wide_steps: Share = 0.25
    """Share of fine-tuning steps that are padded further than to their longest row, to a random length up to the
    longest that the data may have: so a network learns to stop where there is room left."""
    norm: Literal["auto", "token", "sequence", "batch"] = "auto"
    """What the loss is a mean over: every token of the global batch (token); rows, each a mean over its own tokens
    (sequence); rows, each a sum (batch). auto: token in pre-training, sequence in fine-tuning on answers."""
    validation_times: Count = 8
    """Times, evenly spread, at which each validation row is measured; more is less noise and more work."""


@dataclass(frozen=True)
class Objective:
    """The loss and the validation measure of one run.

    A batch holds `tokens`, each row's `length` without padding and its `ids`; in fine-tuning also the length of its
    `prompt`, and with antithetic times its `pair`.
    """

    config: ObjectiveConfig
    vocabulary: Vocabulary
    seed: int
    sft: bool = False
    """Whether rows are prompts with answers."""

    def training_rows(self, rows: TokenRows) -> TokenRows:
        """The rows as they are trained on. An answer is never cut: the network must learn where it ends."""
        if self.sft:
            return StepRows(rows, self.config.wide_steps, self.seed, wider)
        return StepRows(rows, self.config.cut_rows, self.seed, shorter)

    def loss(self, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Each row's bound from one draw of its time and its masked tokens; per token if rows are means."""
        length = self.lengths(batch)
        nll = self._nll(module, batch, length, self._share(self.times(batch)), draw=0)
        return {"nll": nll / target_tokens(batch, length).clamp(min=1) if self.norm == "sequence" else nll}

    def count(self, batch: Batch) -> dict[str, Tensor]:
        """The weight of each row in the loss, and its tokens, the unit of speed."""
        tokens = target_tokens(batch, self.lengths(batch))
        weight = {"token": tokens, "sequence": (tokens > 0).long(), "batch": torch.ones_like(tokens)}[self.norm]
        return {"nll": weight, "tokens": batch["length"]}

    def measure(self, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Each row's bound averaged over evenly spread times, up to an answer's first end token. Fixed by the ids."""
        times = self.config.validation_times
        epoch, index = batch["ids"].unbind(1)
        offset = noise.uniform(self.seed, TIME, epoch, index, dtype=torch.float64)
        shares = [self._share((k + offset) / times) for k in range(times)]
        draws = [self._nll(module, batch, batch["length"], share, draw=k) for k, share in enumerate(shares)]
        return {"nll": torch.stack(draws).mean(0)}

    def measure_count(self, batch: Batch) -> dict[str, Tensor]:
        """The weight of each row in validation: all its tokens but prompt and padding, whatever the loss is a mean
        over."""
        return {"nll": target_tokens(batch, batch["length"])}

    @property
    def norm(self) -> str:
        """What the loss is a mean over, resolved."""
        return self.config.norm if self.config.norm != "auto" else "sequence" if self.sft else "token"

    def times(self, batch: Batch) -> Tensor:
        """The time of each training row, in float64: its own, or that of its pair (see `pair_rows`)."""
        if "pair" not in batch:
            return noise.uniform(self.seed, TIME, *batch["ids"].unbind(1), dtype=torch.float64)
        epoch, index, is_second = batch["pair"].unbind(1)
        first = noise.uniform(self.seed, TIME, epoch, index, dtype=torch.float64)
        return torch.where(is_second == 0, first, 1 - first)

    def lengths(self, batch: Batch) -> Tensor:
        """How many tokens of each training row are learned: without padding, which only counts as part of an answer."""
        return torch.full_like(batch["length"], batch["tokens"].shape[1]) if self.sft else batch["length"]

    def _share(self, times: Tensor) -> Tensor:
        return (1 - self.config.least) * times + self.config.least

    def _nll(self, module: nn.Module, batch: Batch, length: Tensor, share: Tensor, draw: int) -> Tensor:
        tokens, (epoch, index) = batch["tokens"], batch["ids"].unbind(1)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        real = positions < length[:, None]
        keys = (self.seed, MASK, draw, epoch[:, None], index[:, None], positions)
        masked = noise.below(share[:, None], *keys) & real & (positions >= prompt_lengths(batch)[:, None])
        # There is no attention mask, so that the fast kernels apply: the network sees that a text has ended. What fills
        # an answer is hidden where it does not count: seeing it would give the answer's length away.
        mask = self.vocabulary.required_mask
        visible = torch.where(real, tokens, mask if self.sft else self.vocabulary.eos)
        logits = wide(module(torch.where(masked, mask, visible)))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
        # Selected by where: a row without masked tokens gives a zero that still depends on every parameter.
        return torch.where(masked, loss / share[:, None].to(loss.dtype), 0.0).sum(1)


def pair_rows(micro_batches: MicroBatches) -> MicroBatches:
    """The same with `pair` [rows, 3]: (epoch, index) of the first row of each row's pair, and whether it is the second.

    The rows of the whole global batch are paired in the order of their ids, so pairs depend neither on ranks and
    micro-batches nor on the order of rows. The last one of an odd batch has a pair of its own.
    """
    ids = micro_batches.ids
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    place = np.empty_like(order)
    place[order] = np.arange(len(ids))
    pairs = torch.from_numpy(np.column_stack((ids[order[place - place % 2]], place % 2)))
    batches = []
    for batch, (start, stop) in zip(micro_batches.batches, micro_batches.spans):
        rows = slice(start, stop) if start < stop else [0] * len(batch["ids"])  # a filler row may have any pair
        batches.append({**batch, "pair": pairs[rows].to(batch["ids"].device)})
    return replace(micro_batches, batches=batches)


@dataclass
class StepRows(TokenRows):
    """Rows of which a share of the steps has another width than usual, alike in all of the global batch."""

    whole: TokenRows
    share: float
    seed: int
    change: Callable[[TokenRows, int, int], int]
    """(rows, seed, step) to the width of such a step."""

    def __post_init__(self) -> None:
        self.length, self.width, self.size = self.whole.length, self.whole.width, self.whole.size

    def __len__(self) -> int:
        return len(self.whole)

    def of_step(self, step: int, indices: np.ndarray) -> TokenRows:
        rows = self.whole.of_step(step, indices)
        is_changed = bool(noise.below(self.share, self.seed, CHANGED, step))
        return rows.of_width(self.change(rows, self.seed, step)) if is_changed else rows

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        return self.whole.rows(indices)

    def origins(self) -> list[DataFile | np.ndarray]:
        return self.whole.origins()


def shorter(rows: TokenRows, seed: int, step: int) -> int:
    """Any length up to that of the rows, so that nothing behind it is seen."""
    return 1 + int(noise.integers(rows.length, seed, WIDTH, step))


def wider(rows: TokenRows, seed: int, step: int) -> int:
    """One of the widths from that of the rows up to the longest."""
    widths = widths_between(rows.width, rows.length)
    return widths[int(noise.integers(len(widths), seed, WIDTH, step))]


def prompt_lengths(batch: Batch) -> Tensor:
    """How many leading tokens of each row are given; 0 if the batch has no prompts."""
    return batch["prompt"] if "prompt" in batch else torch.zeros_like(batch["length"])


def target_tokens(batch: Batch, length: Tensor) -> Tensor:
    """How many tokens of each row may be masked: those up to its length, without its prompt."""
    return (length - prompt_lengths(batch)).clamp(min=0)


def nll_metrics(nll: float, bytes_per_token: float = 1.0) -> dict[str, float]:
    """The metrics of a mean negative log-likelihood per token; `bytes_per_token` is the mean length of a token's
    text."""
    bits = nll / math.log(2) / bytes_per_token
    return {"nll": nll, "bits_per_byte": bits, "perplexity": math.exp(min(nll, 700.0))}
