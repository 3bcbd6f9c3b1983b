"""One rollout: the generator completes prompts, and the judge looks at the completions beside what people wrote.

Everything that the losses need is in the rows that it returns:

    prompt, is_prompt       what the generator read, padded in front
    written, is_written     exactly the tokens that it sampled, the end of the text included
    before, reference       their log-probabilities then, by the generator and by its reference (if there is one)
    pair, is_pair           what the judge read, padded in front
    answer, is_shown        which answer is right (0 or 1), and whether there was enough to judge
    reward, right           what the generator gets, and whether the judge was right
    human, is_human         spin alone: the human text in the generator's tokens, and `human_before`, `own_before`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Frozen, Learner, LocalGenerator, completion_log_probs, noise
from samestep.models.decoding import left_pad
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import Record, TextRows
from samestep.recipes.gan.judging import PairWriter, answer_tokens
from samestep.recipes.gan.objectives import group_advantages
from samestep.recipes.gan.players import Player

_ORDER = noise.purpose("gan/order")


@dataclass
class Rollouts:
    """Makes rollouts with the networks as they are at the time."""

    bench: Bench
    rows: TextRows
    generator: Learner
    judge: Learner
    writer: Player
    reader: Player
    reference: Frozen | None = None

    def __post_init__(self) -> None:
        self._config: GanConfig = self.bench.config
        self._pairs = PairWriter(self.reader.encode, self._config.judging, self.reader.around)
        self._answers = torch.tensor(answer_tokens(self.reader.encode), device=self.bench.world.device)
        # Another turn of the same step may have the same sample, which must not be written the same.
        self._write = [self._generation(f"gan/write/{turn}") for turn in range(self._config.judge_steps)]

    def _generation(self, purpose: str) -> LocalGenerator:
        side = self.writer
        return LocalGenerator.of(
            self.bench, purpose, self._config.writing, eos=side.eos, pad=side.pad, forbidden=side.forbidden
        )

    def make(self, batch: Batch, step: int, turn: int) -> Mapping[str, Tensor]:
        """The rows that the prompts of a batch become."""
        records = self.rows.of_batch(batch["ids"])
        prompts = [self.writer.prompt(record.prompt) for record in records]
        with self.generator.inference() as network:
            written = self._write[turn](network, prompts, batch["ids"], step=step)
            rows = {**self._padded("prompt", prompts, self.writer.pad), "before": written.log_probs}
            rows |= {"written": written.tokens, "is_written": written.mask, "finished": written.finished}
            if self._config.objective.kind == "spin":
                rows |= self._both_texts(network, rows, records)
        if self.reference is not None:
            with self.reference.inference() as network:
                rows["reference"] = self.log_probs(network, rows)
        texts = [self.writer.decode(tokens) for tokens in written.to_lists()]
        rows |= self._judged(records, texts, batch["ids"], step, turn)
        if self._config.objective.kind == "grpo":  # here, where all completions of a prompt are together
            found = group_advantages(rows["reward"], self._config.objective.group_size)
            rows |= {"advantage": found.values, "no_variance": found.without_variance}
        return rows

    def log_probs(self, network: nn.Module, rows: Mapping[str, Tensor], text: str = "written") -> Tensor:
        """Log-probabilities of the tokens of a text [rows, tokens], at the temperature that it was sampled with."""
        temperature = self._config.writing.temperature
        given = rows["prompt"], rows["is_prompt"], rows[text], rows[f"is_{text}"]
        return completion_log_probs(network, *given, temperature=temperature).log_probs

    def verdict(self, network: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        """The judge's log-probability of the answers 1 and 2 [rows, 2], of these two alone."""
        out: Any = network(rows["pair"], attention_mask=rows["is_pair"], logits_to_keep=1)
        logits = (out if isinstance(out, Tensor) else out.logits)[:, -1]
        chosen = logits[:, self._answers]
        return chosen.to(torch.promote_types(chosen.dtype, torch.float32)).log_softmax(1)

    def odds(
        self,
        network: nn.Module,
        records: Sequence[Record],
        texts: Sequence[str],
        human_first: Sequence[bool],
        ids: Tensor,
    ) -> list[float | None]:
        """The judge's probability of the answer 1 about some texts; one that is too short to judge is caught."""
        asked = zip(records, texts, human_first, strict=True)
        pairs = [self._pairs(record.human, text, first) for record, text, first in asked]
        rows = self._padded("pair", [pair.tokens for pair in pairs], self.reader.pad)
        chances = self.verdict(network, rows)[:, 0].exp().tolist()
        return [
            chance if pair.is_shown else float(pair.answer == 1) for chance, pair in zip(chances, pairs, strict=True)
        ]

    def _both_texts(
        self, network: nn.Module, rows: Mapping[str, Tensor], records: Sequence[Record]
    ) -> dict[str, Tensor]:
        """The human texts, cut to the length that a completion may have, and both texts' log-probabilities now."""
        limit, end = self._config.writing.max_new_tokens, list(self.writer.eos[:1])
        humans = [[*self.writer.encode(record.human), *end][:limit] for record in records]
        found = self._padded("human", humans, self.writer.pad)
        human = self.log_probs(network, {**rows, **found}, "human")
        own = self.log_probs(network, rows)
        return {**found, "human_before": human.sum(1), "own_before": own.sum(1)}

    def _judged(
        self, records: Sequence[Record], texts: Sequence[str], ids: Tensor, step: int, turn: int
    ) -> dict[str, Tensor]:
        """What the judge was shown, and what it made of it."""
        first = noise.below(0.5, self._config.seed, _ORDER, step, turn, ids[:, 0], ids[:, 1]).tolist()
        pairs = [
            self._pairs(record.human, text, human_first)
            for record, text, human_first in zip(records, texts, first, strict=True)
        ]
        device = self.bench.world.device
        answer = torch.tensor([pair.answer - 1 for pair in pairs], device=device)
        is_shown = torch.tensor([pair.is_shown for pair in pairs], device=device)
        rows = self._padded("pair", [pair.tokens for pair in pairs], self.reader.pad)
        with self.judge.inference() as network:
            chances = self.verdict(network, rows).exp()
        of_right = chances.gather(1, answer[:, None])[:, 0]
        # A completion that is too short to judge is caught: the judge was right about it, and it earns nothing.
        right = torch.where(is_shown, (of_right > 0.5).to(of_right.dtype), 1.0)
        reward = torch.where(is_shown, 1 - of_right, 0.0)
        return {**rows, "answer": answer, "is_shown": is_shown, "right": right, "reward": reward}

    def _padded(self, name: str, tokens: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
        padded, mask = left_pad(tokens, pad, self.bench.world.device)
        return {name: padded, f"is_{name}": torch.ones_like(padded, dtype=torch.bool) if mask is None else mask}
