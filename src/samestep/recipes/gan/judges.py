"""The two kinds of judge: one that gives its verdict by the odds of two answers, and one that writes its reasons first.

Both ask a network about pairs of texts and return the same rows:

    right           whether the judge found what a person wrote: 1, 0, or 0.5 where both answers are equally likely
    reward          what the generator gets
    judge_reward    what the judge gets, where it learns by policy gradient
    parsed          whether its answer could be read
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, GenerationConfig, LocalGenerator, completion_log_probs
from samestep.models.decoding import left_pad
from samestep.models.log_probs import last_logits
from samestep.recipes.gan.judging import JudgeConfig, Pair, answer_rewards, answer_tokens, read_answer
from samestep.recipes.gan.players import Player, generator_of

Rows = dict[str, Tensor]
VERDICT = "verdict"
"""The term of a judge's loss."""


class Judge(Protocol):
    """How a network judges pairs, and what it learns from that."""

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """The rows of some pairs, with all that `loss` needs; `ids` and the turn of a step key what is sampled. Without
        a turn, the rows are not learned from."""

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The term `verdict` of rows that have a `judge_advantage` if the judge learns by policy gradient."""

    def count(self, batch: Batch) -> Tensor:
        """What each row weighs in the loss."""


def make_judge(bench: Bench, config: JudgeConfig, reader: Player) -> Judge:
    """The judge that a configuration asks for."""
    return (GenerativeJudge if config.mode == "generative" else VerdictJudge)(bench, config, reader)


class VerdictJudge:
    """One look at a pair: the odds of the answers 1 and 2, of these two alone."""

    def __init__(self, bench: Bench, config: JudgeConfig, reader: Player) -> None:
        self._config, self._pad = config, reader.pad
        self._device, self._draws = bench.world.device, bench.draws("gan/verdict")
        self._answers = torch.tensor(answer_tokens(reader.encode), device=self._device)

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """A completion that is too short to judge is caught: the judge was right about it, and it earns nothing."""
        rows = {
            **padded("pair", [pair.tokens for pair in pairs], self._pad, self._device),
            **facts(pairs, self._device),
        }
        odds = self.log_odds(network, rows)
        of_right, of_wrong = (odds.gather(1, answer[:, None])[:, 0] for answer in (rows["answer"], 1 - rows["answer"]))
        # In bf16 logits are often equal, where the judge has not decided: half right.
        right = (of_right > of_wrong).to(odds.dtype) + 0.5 * (of_right == of_wrong)
        right = torch.where(rows["is_shown"], right, 1.0)
        reward = torch.where(rows["is_shown"], 1 - of_right.exp(), 0.0)
        rows |= {"right": right, "reward": reward, "judge_reward": right}
        if self._config.training == "policy_gradient" and turn is not None:
            chosen = self._draws.pick(odds, step=step, ids=ids.to(self._device), position=turn)
            rows |= {"chosen": chosen, "judge_reward": (chosen == rows["answer"]).to(right.dtype)}
        return {**rows, "parsed": torch.ones_like(rows["is_shown"])}

    def log_odds(self, network: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities of the answers 1 and 2 [rows, 2]."""
        both = last_logits(network, rows["pair"], rows["is_pair"])[:, self._answers]
        return both.to(torch.promote_types(both.dtype, torch.float32)).log_softmax(1)

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Cross-entropy of the right answer, or the policy gradient of the one that was drawn."""
        odds = self.log_odds(network, batch)
        if self._config.training == "policy_gradient":
            values = -batch["judge_advantage"] * odds.gather(1, batch["chosen"][:, None])[:, 0]
            return _policy_terms(batch, values)
        values = -odds.gather(1, batch["answer"][:, None])[:, 0]
        return {VERDICT: torch.where(batch["is_shown"], values, 0.0)}

    def count(self, batch: Batch) -> Tensor:
        """Pairs that were shown."""
        return batch["is_shown"]


class GenerativeJudge:
    """Writes its reasons and an answer in a box; learns by policy gradient from having been right."""

    def __init__(self, bench: Bench, config: JudgeConfig, reader: Player) -> None:
        self._config, self._reader, self._device = config, reader, bench.world.device
        self._bench = bench
        self._writing = GenerationConfig(max_new_tokens=config.answer_tokens, temperature=config.temperature)
        self._generators: dict[int | None, LocalGenerator] = {}

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """The rows also have exactly the tokens that the judge sampled."""
        prompts = [pair.tokens for pair in pairs]
        written = self._generator(turn)(network, prompts, ids, step=step)
        answers = [read_answer(self._reader.decode(tokens)) for tokens in written.to_lists()]
        rewards = [answer_rewards(answer, pair.answer, self._config) for answer, pair in zip(answers, pairs)]
        rows = {**padded("pair", prompts, self._reader.pad, self._device), **facts(pairs, self._device)}
        rows |= {"judged": written.tokens, "is_judged": written.mask}
        shown, dtype = rows["is_shown"], written.log_probs.dtype
        judge, generator = torch.tensor(rewards, dtype=dtype, device=self._device).unbind(1)
        right = torch.where(shown, (judge == 1).to(dtype), 1.0)
        parsed = torch.tensor([answer is not None for answer in answers], device=self._device) | ~shown
        rows |= {"right": right, "reward": torch.where(shown, generator, 0.0), "judge_reward": judge}
        return {**rows, "parsed": parsed}

    def _generator(self, turn: int | None) -> LocalGenerator:
        """Another turn of the same step may have the same sample, which must not be judged with the same noise."""
        if turn not in self._generators:
            purpose = f"gan/judge/{'benchmark' if turn is None else turn}"
            self._generators[turn] = generator_of(
                self._bench, self._reader, purpose, self._writing, in_step=turn is not None
            )
        return self._generators[turn]

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The policy gradient of all that it wrote."""
        given = batch["pair"], batch["is_pair"], batch["judged"], batch["is_judged"]
        found = completion_log_probs(network, *given, temperature=self._config.temperature)
        values = -batch["judge_advantage"] * torch.where(batch["is_judged"], found.log_probs, 0.0).sum(1)
        return _policy_terms(batch, values)

    def count(self, batch: Batch) -> Tensor:
        """Tokens that it wrote about pairs that were shown."""
        return batch["is_judged"].sum(1) * batch["is_shown"]


def _policy_terms(batch: Batch, values: Tensor) -> dict[str, Tensor]:
    """What is learned, and whether all rewards were equal, so that nothing is; that is only logged."""
    return {
        VERDICT: torch.where(batch["is_shown"], values, 0.0),
        "no_variance": batch["judge_no_variance"].to(values.dtype),
    }


def padded(name: str, tokens: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Tokens as rows that are padded in front, and `is_NAME`, true where there is one."""
    rows, mask = left_pad(tokens, pad, device)
    return {name: rows, f"is_{name}": torch.ones_like(rows, dtype=torch.bool) if mask is None else mask}


def facts(pairs: Sequence[Pair], device: torch.device) -> dict[str, Tensor]:
    """The right `answer` (0 or 1) of each pair, and whether there was enough to judge."""
    return {
        "answer": torch.tensor([pair.answer - 1 for pair in pairs], device=device),
        "is_shown": torch.tensor([pair.is_shown for pair in pairs], device=device),
    }
