"""A judge that trained with neither of two generators: the first half of a language model's layers and one output.

It gives each text one number, so it has no order to prefer: the text with the larger one of two is the one that it
takes for a person's, whichever comes first. The number is a float32, also where the layers compute in bf16. It learns
that people's texts get larger numbers than generated ones for the same prompt, -log sigmoid(person's - generated), with
as many texts of one generator as of the other.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

Texts = Sequence[tuple[str, str]]
"""Prompts, each with a text that follows it."""


class Scorer(nn.Module):
    """The first half of a causal model's layers, the mean of the text's last hidden states, and one output."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.body: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model
        kept = max(1, len(self.body.layers) // 2)
        self.body.layers = self.body.layers[:kept]
        self.body.config.num_hidden_layers = kept
        self.out = nn.Parameter(torch.zeros(self.body.config.hidden_size))

    def encode(self, prompt: str, text: str, limit: int) -> tuple[list[int], int]:
        """The tokens of both, of the prompt its last 128, and how many are of the prompt."""
        before = self.tokenizer(prompt, add_special_tokens=False)["input_ids"][-128:]
        return before + self.tokenizer(text, add_special_tokens=False)["input_ids"][:limit] or [0], len(before)

    def forward(self, tokens: Tensor, is_token: Tensor, is_text: Tensor) -> Tensor:
        """[rows]: one number each."""
        hidden = self.body(input_ids=tokens, attention_mask=is_token, use_cache=False).last_hidden_state.float()
        mean = (hidden * is_text[..., None]).sum(1) / is_text.sum(1, keepdim=True).clamp(min=1)
        scores: Tensor = (mean * self.out).sum(1)
        return scores


class IndependentJudge:
    """Trains a scorer, and scores texts."""

    def __init__(self, folder: Path, device: str, limit: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._scorer, self._device, self._limit = Scorer(folder).to(device), device, limit
        self._random = np.random.default_rng(seed)

    def train(self, groups: Sequence[Texts], epochs: int = 2, rows: int = 32, rate: float = 3e-5) -> float:
        """Learn from people's texts, the first of `groups`, and generated ones for the same prompts, the others.
        Returns the share of pairs that were told in the last quarter of the updates, before it learned from them."""
        steps = [part for _ in range(epochs) for part in self._batches(len(groups[0]), rows)]
        optimizer = torch.optim.AdamW(self._scorer.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        told: list[float] = []
        self._scorer.train()
        for number, part in enumerate(steps):
            scale = min(1.0, (number + 1) / min(20, 0.1 * len(steps))) * (1 - number / len(steps))
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            scores = self._forward([texts[i] for texts in groups for i in part]).view(len(groups), -1)
            margins = scores[:1] - scores[1:]
            optimizer.zero_grad(set_to_none=True)
            (-logsigmoid(margins).mean()).backward()
            nn.utils.clip_grad_norm_(self._scorer.parameters(), 1.0)
            optimizer.step()
            told.append((margins > 0).float().mean().item())
        self._scorer.eval()
        return float(np.mean(told[-max(1, len(told) // 4) :]))

    @torch.no_grad()
    def scores(self, groups: Sequence[Texts], rows: int = 128) -> list[np.ndarray]:
        """One number for each text of each group: the larger, the more like a person's. A batch has texts of all groups
        in drawn order, so what its width does to the last bits is no difference between groups."""
        texts = [text for group in groups for text in group]
        order = self._random.permutation(len(texts))
        parts = [order[start : start + rows] for start in range(0, len(order), rows)]
        found = np.empty(len(texts))
        for part in parts:
            found[part] = self._forward([texts[i] for i in part]).cpu().double().numpy()
        return np.split(found, np.cumsum([len(group) for group in groups])[:-1])

    def _batches(self, count: int, rows: int) -> list[np.ndarray]:
        order = self._random.permutation(count)
        return np.array_split(order, max(1, count // rows))

    def _forward(self, texts: Texts) -> Tensor:
        encoded = [self._scorer.encode(prompt, text, self._limit) for prompt, text in texts]
        width = max(len(tokens) for tokens, _ in encoded)
        tokens = torch.zeros(len(encoded), width, dtype=torch.long)
        is_token, is_text = torch.zeros_like(tokens), torch.zeros_like(tokens)
        for row, (own, before) in enumerate(encoded):
            tokens[row, : len(own)] = torch.tensor(own)
            is_token[row, : len(own)] = 1
            is_text[row, before : len(own)] = 1
        given = (each.to(self._device) for each in (tokens, is_token, is_text))
        with torch.autocast("cuda", torch.bfloat16, enabled=self._device.startswith("cuda")):
            scores: Tensor = self._scorer(*given)
        return scores


def win_shares(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """By prompt, how often a text of the first beats one of the second; scores are [prompts, samples]."""
    more = first[:, :, None] - second[:, None, :]
    return ((more > 0) + 0.5 * (more == 0)).mean((1, 2))


def bootstrap(
    by_prompt: np.ndarray, groups: Sequence[str] | None = None, resamples: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean and 95% interval by resampling prompts, the last axis; what else there is (seeds) is averaged. Given the
    document of each prompt as `groups`, whole ones are drawn: their prompts are more alike than others."""
    values = by_prompt if by_prompt.ndim == 1 else by_prompt.mean(0)
    _, group = np.unique(np.arange(len(values)) if groups is None else np.asarray(groups), return_inverse=True)
    sums, counts = np.bincount(group, values), np.bincount(group)
    random = np.random.default_rng(seed)
    drawn = random.integers(len(sums), size=(resamples, len(sums)))
    low, high = np.quantile(sums[drawn].sum(1) / counts[drawn].sum(1), [0.025, 0.975])
    return float(values.mean()), float(low), float(high)
