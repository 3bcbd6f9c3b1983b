"""One rollout: the generator completes prompts, and the judge looks at the completions beside what people wrote.

Everything that the losses need is in the rows that it returns:

    prompt, is_prompt       what the generator read, padded in front
    written, is_written     exactly the tokens that it sampled, the end of the text included
    before, reference       their log-probabilities then, by the generator and by its reference (if there is one)
    pair, is_pair           what the judge read in both orders [rows, 2, width], padded in front
    is_shown                whether there was enough to judge
    right, reward, ...      what came of it (see judges.py)
    human, is_human         spin alone: the human text in the generator's tokens, and `human_before`, `own_before`
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Batch, Bench, LanguageModel, Learner, MicroBatches, completion_log_probs, noise, policy
from samestep.kit.generation import generator_in_stage
from samestep.models.decoding import position_limit
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import Record, TextRows
from samestep.recipes.gan.judges import ORDERS, Judge, Pair, PairWriter, padded
from samestep.recipes.gan.players import PromptWriter
from samestep.recipes.gan.rewards import make_rewards

_EXAMPLES = noise.purpose("gan/examples")
SHOWN = 4
"""Rows of a rollout that are written for people to read."""


@dataclass(frozen=True)
class Opponents:
    """The weights that play in one rollout: by default those that the learners have now."""

    generator: Callable[[], AbstractContextManager[None]] = nullcontext
    judge: Callable[[], AbstractContextManager[None]] | None = None
    """An earlier judge that the generator's rewards come from; None: the judge of now."""


@dataclass
class Rollouts:
    """Makes rollouts with the networks as they are at the time."""

    bench: Bench
    rows: TextRows
    generator: Learner
    judge: Learner
    writer: LanguageModel
    reader: LanguageModel
    judging: Judge
    reference: Callable[[], AbstractContextManager[nn.Module]] | None = None
    """Around the use of the network that the generator may not move too far from."""

    def __post_init__(self) -> None:
        self._config: GanConfig = self.bench.config
        self._pairs = PairWriter(
            self.reader.encode, self._config.judging, self.reader.around, position_limit(self.judge.module)
        )
        self._prompts = PromptWriter(
            self.writer, position_limit(self.generator.module), self._config.writing.max_new_tokens
        )
        # Another turn of the same step may have the same sample, which must not be written the same.
        writing, keep = self._config.writing, self._config.keep_gathered
        self._write = [
            generator_in_stage(self.bench, self.writer, f"gan/write/{turn}", writing, keep_gathered=keep)
            for turn in range(self._config.judge_steps)
        ]
        self._rewards = make_rewards(self._config.reward, self._config.reward_clip)

    def make(self, batch: Batch, step: int, turn: int, opponents: Opponents) -> Mapping[str, Tensor]:
        """The rows that the prompts of a batch become."""
        records = self.rows.of_batch(batch["ids"])
        prompts = [self._prompts(record.prompt) for record in records]
        with opponents.generator(), self.generator.inference() as network:
            written = self._write[turn](network, [prompt.tokens for prompt in prompts], batch["ids"], step=step)
            rows = {**self._padded("prompt", [prompt.tokens for prompt in prompts]), "before": written.log_probs}
            rows |= {"written": written.tokens, "is_written": written.mask, "finished": written.finished}
            rows["prompt_cut"] = torch.tensor([prompt.is_cut for prompt in prompts], device=self.bench.world.device)
            if self._config.objective.kind == "spin":
                rows |= self._both_texts(network, rows, records)
        if self.reference is not None:
            with self.reference() as network:
                rows["reference"] = self.log_probs(network, rows)
        texts = [self.writer.decode(tokens) for tokens in written.to_lists()]
        pairs = self._shown(records, texts)
        rows |= self._judged(pairs, batch["ids"], step, turn, opponents)
        rows["reward"] = self._rewards(records, texts, rows)
        if self._config.objective.kind == "grpo":  # here, where all completions of a prompt are together
            found = policy.group_advantages(rows["reward"], self._config.objective.group_size)
            rows |= {"advantage": found.values, "no_variance": found.without_variance}
        return rows

    def log_probs(self, network: nn.Module, rows: Mapping[str, Tensor], text: str = "written") -> Tensor:
        """Log-probabilities of the tokens of a text [rows, tokens], at the temperature that it was sampled with."""
        temperature = self._config.writing.temperature
        given = rows["prompt"], rows["is_prompt"], rows[text], rows[f"is_{text}"]
        return completion_log_probs(network, *given, temperature=temperature).log_probs

    def right(
        self, network: nn.Module, records: Sequence[Record], texts: Sequence[str], ids: Tensor
    ) -> list[list[float | None]]:
        """Whether the judge is right, by row and order: 1, 0, or 0.5 for a tie; None where the answer cannot be read. A
        text that is too short to judge counts as caught. All ranks call it equally often, with at least one row; `ids`
        [rows, 2] key noise."""
        rows = self.judging.ask(network, self._shown(records, texts), ids, step=0, turn=None)
        found = zip(rows["right"].tolist(), rows["parsed"].tolist(), strict=True)
        return [[right if read else None for right, read in zip(*row, strict=True)] for row in found]

    def _both_texts(
        self, network: nn.Module, rows: Mapping[str, Tensor], records: Sequence[Record]
    ) -> dict[str, Tensor]:
        """The human texts, cut to the length that a completion may have, and both texts' log-probabilities now."""
        limit, end = self._config.writing.max_new_tokens, self.writer.answer_end
        found = self._padded("human", [[*self.writer.encode(record.human), end][:limit] for record in records])
        human = self.log_probs(network, {**rows, **found}, "human")
        own = self.log_probs(network, rows)
        return {**found, "human_before": human.sum(1), "own_before": own.sum(1)}

    def _shown(self, records: Sequence[Record], texts: Sequence[str]) -> list[Pair]:
        return [self._pairs(record.prompt, record.human, text) for record, text in zip(records, texts, strict=True)]

    def _judged(
        self, pairs: Sequence[Pair], ids: Tensor, step: int, turn: int, opponents: Opponents
    ) -> dict[str, Tensor]:
        """What the judge made of it; the generator's reward may come from an earlier judge."""
        with self.judge.inference() as network:
            rows = self.judging.ask(network, pairs, ids, step=step, turn=turn)
        if opponents.judge is not None:
            with opponents.judge(), self.judge.inference() as network:
                earlier = self.judging.ask(network, pairs, ids, step=step, turn=self._config.judge_steps)
            rows |= {name: earlier[name] for name in ("reward", "log_odds") if name in earlier}
        return rows

    def _padded(self, name: str, tokens: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return padded(name, tokens, self.writer.pad, self.bench.world.device)

    def examples(self, rollout: MicroBatches) -> list[dict[str, Any]]:
        """Some rows of a rollout as texts, on all ranks: those that a key of their ids chooses, in their order. All
        ranks call it alike."""
        ids = rollout.ids
        high, low = noise.words(_EXAMPLES, rollout.step, ids[:, 0], ids[:, 1])
        chosen = set(np.lexsort((low, high))[:SHOWN].tolist())
        mine = [
            (place, self._as_texts(batch, place - start))
            for batch, (start, stop) in zip(rollout.batches, rollout.spans, strict=True)
            for place in range(start, stop)
            if place in chosen
        ]
        found = dict(pair for part in self.bench.world.gather(mine) for pair in part)
        return [found[place] for place in sorted(found)]

    def _as_texts(self, batch: Batch, number: int) -> dict[str, Any]:
        """A row as texts and plain numbers."""
        row = {name: values[number] for name, values in batch.items()}
        (record,) = self.rows.of_batch(row["ids"][None])
        named = zip(ORDERS, row["right"].tolist(), (row["parsed"] & row["is_shown"]).tolist(), strict=True)
        found: dict[str, Any] = {
            "prompt": record.prompt,
            "human": record.human,
            "generated": self.writer.decode(row["written"][row["is_written"]].tolist()),
            # Which text the judge named, where the human one stood first and second; a tie names neither.
            "answers": [{1.0: human, 0.0: 3 - human}.get(right) if read else None for human, right, read in named],
            "generator_reward": row["reward"].item(),
            "judge_reward": row["judge_reward"].mean().item(),
        }
        if "judged" in row:  # a generative judge's own words
            answers = zip(row["judged"], row["is_judged"], strict=True)
            found["judge"] = [self.reader.decode(tokens[real].tolist()) for tokens, real in answers]
        return found
