"""Masked diffusion: mask a random share of a row, predict the masked tokens, weigh the loss by one over the share.

A row draws a time t in (0, 1), masks each token with probability p = (1 - least) t + least, and scores

    nll(row) = sum over its masked tokens of -log q(token | the unmasked tokens) / p

whose expectation bounds the row's negative log-likelihood from above. In pre-training a row weighs ALL its tokens:
dividing by the number of masked ones would undo the 1/p and bias the estimate. In fine-tuning on answers (SFT) the
leading `prompt` tokens of a row are never masked and never counted, and the end-of-text tokens that fill the row are
part of the answer: that is how a network learns where to stop. Every draw is a function of (seed, epoch, index,
position), hence the same on any number of ranks.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep import Batch, noise
from samestep.core.config.bounds import Count, Decay, Share
from samestep.core.config.checked import CheckedConfig
from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.models.wide import wide

MASK = noise.purpose("mdlm.hide")  # the name is part of the key: another one would change every run's masks
TIME = noise.purpose("mdlm.time")
CUT = noise.purpose("mdlm.cut")
CUT_LENGTH = noise.purpose("mdlm.cut_length")


@dataclass(frozen=True)
class ObjectiveConfig(CheckedConfig):
    """How tokens are masked, how rows are weighed, and how validation averages over it."""

    least: Decay = 1e-3
    """Smallest share of masked tokens: a time t in (0, 1) masks a share of (1 - least) t + least."""
    antithetic: bool = True
    """Give rows 2k and 2k+1 of an epoch the times t and 1 - t, so that an epoch covers all times evenly."""
    cut_rows: Share = 0.01
    """Share of pre-training rows that are cut to a random length, so that short texts are learned too; LLaDA's 0.01."""
    norm: Literal["auto", "token", "sequence", "batch"] = "auto"
    """What the loss is a mean over: every token of the global batch (token); rows, each a mean over its own tokens
    (sequence); rows, each a sum (batch). auto: token in pre-training, sequence in fine-tuning on answers."""
    validation_times: Count = 8
    """Times, evenly spread, at which each validation row is measured; more is less noise and more work."""


@dataclass(frozen=True)
class Objective:
    """The loss and the validation measure of one run.

    A batch holds `tokens`, each row's real `length` and its `ids`; in fine-tuning also the length of its `prompt`.
    """

    config: ObjectiveConfig
    vocabulary: Vocabulary
    seed: int
    sft: bool = False
    """Whether rows are prompts with answers."""

    def loss(self, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Each row's bound from one draw of its time and its masked tokens; per token if rows are means."""
        length = self.lengths(batch)
        nll = self._nll(module, batch, length, self._share(self.times(batch["ids"])), draw=0)
        return {"nll": nll / target_tokens(batch, length).clamp(min=1) if self.norm == "sequence" else nll}

    def count(self, batch: Batch) -> dict[str, Tensor]:
        """The weight of each row in the loss, and its tokens, the unit of speed."""
        tokens = target_tokens(batch, self.lengths(batch))
        weight = {"token": tokens, "sequence": (tokens > 0).long(), "batch": torch.ones_like(tokens)}[self.norm]
        return {"nll": weight, "tokens": batch["length"]}

    def measure(self, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Each row's bound averaged over evenly spread times; rows are never cut. Fixed by the ids."""
        times = self.config.validation_times
        epoch, index = batch["ids"].unbind(1)
        offset = noise.uniform(self.seed, TIME, epoch, index, dtype=torch.float64)
        shares = [self._share((k + offset) / times) for k in range(times)]
        draws = [self._nll(module, batch, batch["length"], share, draw=k) for k, share in enumerate(shares)]
        return {"nll": torch.stack(draws).mean(0)}

    def measure_count(self, batch: Batch) -> dict[str, Tensor]:
        """The weight of each row in validation: all its tokens but the prompt, whatever the loss is a mean over."""
        return {"nll": target_tokens(batch, batch["length"])}

    @property
    def norm(self) -> str:
        """What the loss is a mean over, resolved."""
        return self.config.norm if self.config.norm != "auto" else "sequence" if self.sft else "token"

    def times(self, ids: Tensor) -> Tensor:
        """The time of each training row, in float64."""
        epoch, index = ids.unbind(1)
        if not self.config.antithetic:
            return noise.uniform(self.seed, TIME, epoch, index, dtype=torch.float64)
        first = noise.uniform(self.seed, TIME, epoch, index // 2, dtype=torch.float64)
        return torch.where(index % 2 == 0, first, 1 - first)

    def lengths(self, batch: Batch) -> Tensor:
        """How many tokens of each training row are used: its real ones, or fewer in the few rows that are cut.

        An answer is never cut: the network must learn where it ends.
        """
        if self.sft or not self.config.cut_rows:
            return batch["length"]
        epoch, index = batch["ids"].unbind(1)
        cut = noise.below(self.config.cut_rows, self.seed, CUT, epoch, index)
        shorter = 1 + noise.integers(batch["tokens"].shape[1], self.seed, CUT_LENGTH, epoch, index)
        return torch.where(cut, torch.minimum(batch["length"], shorter), batch["length"])

    def _share(self, times: Tensor) -> Tensor:
        return (1 - self.config.least) * times + self.config.least

    def _nll(self, module: nn.Module, batch: Batch, length: Tensor, share: Tensor, draw: int) -> Tensor:
        tokens, (epoch, index) = batch["tokens"], batch["ids"].unbind(1)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        real = positions < length[:, None]
        keys = (self.seed, MASK, draw, epoch[:, None], index[:, None], positions)
        masked = noise.below(share[:, None], *keys) & real & (positions >= prompt_lengths(batch)[:, None])
        # After the end of a row there is padding that the network sees: without an attention mask the fast kernels
        # apply, and all rows keep one shape.
        visible = torch.where(real, tokens, self.vocabulary.eos)
        logits = wide(module(torch.where(masked, self.vocabulary.required_mask, visible)))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
        # Selected by where: a row without masked tokens gives a zero that still depends on every parameter.
        return torch.where(masked, loss / share[:, None].to(loss.dtype), 0.0).sum(1)


def prompt_lengths(batch: Batch) -> Tensor:
    """How many leading tokens of each row are given; 0 if the batch has no prompts."""
    return batch["prompt"] if "prompt" in batch else torch.zeros_like(batch["length"])


def target_tokens(batch: Batch, length: Tensor) -> Tensor:
    """How many tokens of each row may be masked: those up to its length, without its prompt."""
    return (length - prompt_lengths(batch)).clamp(min=0)


def nll_metrics(nll: float, bytes_per_token: float | None = 1.0) -> dict[str, float]:
    """The metrics of a mean negative log-likelihood per token; `bytes_per_token` is the mean length of a token's text,
    or None if some tokens stand for no text."""
    bits = {} if bytes_per_token is None else {"bits_per_byte": nll / math.log(2) / bytes_per_token}
    return {"nll": nll, **bits, "perplexity": math.exp(min(nll, 700.0))}
