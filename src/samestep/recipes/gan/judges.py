"""What the judge is shown, and the two kinds of judge: by the odds of two answers, or by what it writes after reasons.

Two texts for one prompt, one of them written by a person, are cut to the length of the shorter one, in the judge's
tokens, so that length does not give the answer away. Which comes first is drawn for each sample. A completion with
fewer than `min_tokens` tokens is not shown: it counts as caught, or a generator could win by writing nothing to judge.

Both kinds ask a network about such pairs and return the same rows:

    right           whether the judge found what a person wrote: 1, 0, or 0.5 where both answers are equally likely
    reward          what the generator gets
    judge_reward    what the judge gets, where it learns by policy gradient
    parsed          whether its answer could be read
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    GenerationConfig,
    LanguageModel,
    LocalGenerator,
    UserError,
    completion_log_probs,
    policy,
)
from samestep.core.config.bounds import Count, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.kit.generation import generator_in_stage
from samestep.models.decoding import left_pad
from samestep.models.log_probs import last_logits
from samestep.models.wide import wide

Encode = Callable[[str], Sequence[int]]
Mode = Literal["verdict", "generative"]
DEFAULT_CRITERION = "Which of two texts did a person write?"
"""What a judge of this recipe is trained to tell."""
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def with_instruction(question: str, mode: Mode) -> str:
    """A question about two texts, and how it is to be answered."""
    if mode == "generative":
        return f"{question} Think about it in a few sentences, then end with \\boxed{{1}} or \\boxed{{2}}."
    return f"{question} Answer 1 or 2."


@dataclass(frozen=True)
class JudgeConfig(CheckedConfig):
    """How the judge tells texts apart."""

    mode: Mode = "verdict"
    """verdict: one look at the odds of the answers 1 and 2. generative: the judge writes its reasons, then \\boxed{1}
    or \\boxed{2}."""
    training: Literal["cross_entropy", "policy_gradient"] = "cross_entropy"
    """How a verdict is learned; a generative judge always learns by policy gradient."""
    min_tokens: Count = 1
    """A completion with fewer tokens counts as caught."""
    max_tokens: Count = 256
    """Tokens of each text that the judge is shown, at most."""
    answer_tokens: Count = 256
    """generative: tokens that the judge may write."""
    temperature: Positive = 1.0
    """generative: how freely the judge writes."""
    unparsed_fools: bool = False
    """generative: count an answer that cannot be read as a fooled judge, as older programs did."""

    @property
    def learns_by_policy_gradient(self) -> bool:
        return self.mode == "generative" or self.training == "policy_gradient"

    def __post_init__(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise UserError(
                f"Set judging.min_tokens between 1 and judging.max_tokens={self.max_tokens}; it is {self.min_tokens}."
            )


@dataclass(frozen=True)
class Pair:
    """Two texts as the judge is shown them."""

    tokens: list[int]
    """All that the judge reads, up to its answer."""
    answer: int
    """1 or 2: which of them a person wrote."""
    is_shown: bool
    """Whether there is enough of the completion to judge."""


class PairWriter:
    """Makes what a judge reads, in its tokens.

    `around` gives what stands before and after the texts, from a question: by a chat template, or nothing after.
    `limit` is how many tokens the judge's network takes in all; texts are cut so that they fit. `question` is what a
    judge of this recipe is trained to tell, where none is given.
    """

    def __init__(
        self,
        encode: Encode,
        config: JudgeConfig,
        around: Callable[[str], tuple[Sequence[int], Sequence[int]]],
        limit: int | None = None,
        question: str | None = None,
    ) -> None:
        is_generative = config.mode == "generative"
        self._encode, self._min_tokens = encode, config.min_tokens
        self._before, after = around(question or with_instruction(DEFAULT_CRITERION, config.mode))
        self._after = after or encode("\n\nAnswer: ")
        self._labels = encode("\n\nText 1:\n"), encode("\n\nText 2:\n")
        self._max_tokens = config.max_tokens
        if limit is not None:
            around_texts = len(self._before) + len(self._after) + sum(map(len, self._labels))
            room = limit - around_texts - (config.answer_tokens if is_generative else 0)
            self._max_tokens = min(config.max_tokens, room // 2)
        if self._max_tokens < self._min_tokens:
            raise UserError(
                f"Use a judge that takes more tokens, or lower judging.answer_tokens or judging.min_tokens: of the "
                f"{limit} that it takes, {max(0, self._max_tokens)} are left for each of the two texts."
            )

    def __call__(self, human: str, written: str, human_first: bool) -> Pair:
        """A person's text and a completion, in the given order and cut to one length."""
        mine, theirs = self._encode(human), self._encode(written)
        length = min(len(mine), len(theirs), self._max_tokens)
        first, second = (mine, theirs) if human_first else (theirs, mine)
        texts = [*self._labels[0], *first[:length], *self._labels[1], *second[:length]]
        is_shown = length > 0 and len(theirs) >= self._min_tokens
        return Pair([*self._before, *texts, *self._after], 1 if human_first else 2, is_shown)


def answer_tokens(encode: Encode) -> tuple[int, int]:
    """The tokens of the answers 1 and 2, whose odds are the verdict."""
    found = [list(encode(answer)) for answer in ("1", "2")]
    if any(len(tokens) != 1 for tokens in found) or found[0] == found[1]:
        raise UserError(
            f"Use another judge, or judging.mode=generative; its tokenizer makes {found[0]} of 1 and {found[1]} of 2, "
            "where a verdict needs one token each."
        )
    return found[0][0], found[1][0]


def read_answer(text: str) -> int | None:
    """The answer in what a generative judge wrote: its last box; None where that holds neither 1 nor 2."""
    boxes = _BOX.findall(text)
    answer = boxes[-1].strip() if boxes else ""
    return int(answer) if answer in ("1", "2") else None


def answer_rewards(answer: int | None, right: int, config: JudgeConfig) -> tuple[float, float]:
    """The rewards of judge and generator for an answer that was read: a judge is right (1) or wrong (0) and the
    generator gets the rest. One that cannot be read is worse than wrong (-1), and nobody was fooled by it."""
    if answer is None:
        return -1.0, float(config.unparsed_fools)
    return float(answer == right), float(answer != right)


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
        """What each row weighs in the loss: 1 or the tokens written where the pair was shown, else 0."""


def make_judge(bench: Bench, config: JudgeConfig, reader: LanguageModel) -> Judge:
    """The judge that a configuration asks for."""
    return (GenerativeJudge if config.mode == "generative" else VerdictJudge)(bench, config, reader)


class VerdictJudge:
    """One look at a pair: the odds of the answers 1 and 2, of these two alone."""

    def __init__(self, bench: Bench, config: JudgeConfig, reader: LanguageModel) -> None:
        self._config, self._pad = config, reader.pad
        self._device, self._draws = bench.world.device, bench.draws("gan/verdict")
        self._answers = torch.tensor(answer_tokens(reader.encode), device=self._device)

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """A completion that is too short to judge is caught: the judge was right about it, and it earns nothing."""
        rows = _pair_rows(pairs, self._pad, self._device)
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
        """[rows, 2], of the answers 1 and 2."""
        both = last_logits(network, rows["pair"], rows["is_pair"])[:, self._answers]
        return wide(both).log_softmax(1)

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Cross-entropy of the right answer, or the policy gradient of the one that was drawn."""
        odds = self.log_odds(network, batch)
        if self._config.training == "policy_gradient":
            return _policy_terms(batch, odds.gather(1, batch["chosen"][:, None])[:, 0])
        values = -odds.gather(1, batch["answer"][:, None])[:, 0]
        return {VERDICT: torch.where(batch["is_shown"], values, 0.0)}

    def count(self, batch: Batch) -> Tensor:
        return batch["is_shown"]


class GenerativeJudge:
    """Writes its reasons and an answer in a box; learns by policy gradient from having been right."""

    def __init__(self, bench: Bench, config: JudgeConfig, reader: LanguageModel) -> None:
        self._bench, self._config, self._reader, self._device = bench, config, reader, bench.world.device
        self._writing = GenerationConfig(max_new_tokens=config.answer_tokens, temperature=config.temperature)
        self._generators: dict[int | None, LocalGenerator] = {}

    def ask(
        self, network: nn.Module, pairs: Sequence[Pair], ids: Tensor, *, step: int, turn: int | None
    ) -> dict[str, Tensor]:
        """The rows also have exactly the tokens that the judge sampled."""
        written = self._generator(turn)(network, [pair.tokens for pair in pairs], ids, step=step)
        answers = [read_answer(self._reader.decode(tokens)) for tokens in written.to_lists()]
        rewards = [answer_rewards(answer, pair.answer, self._config) for answer, pair in zip(answers, pairs)]
        rows = _pair_rows(pairs, self._reader.pad, self._device)
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
            self._generators[turn] = generator_in_stage(
                self._bench, self._reader, purpose, self._writing, in_step=turn is not None
            )
        return self._generators[turn]

    def loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        given = batch["pair"], batch["is_pair"], batch["judged"], batch["is_judged"]
        found = completion_log_probs(network, *given, temperature=self._config.temperature)
        return _policy_terms(batch, torch.where(batch["is_judged"], found.log_probs, 0.0).sum(1))

    def count(self, batch: Batch) -> Tensor:
        return batch["is_judged"].sum(1) * batch["is_shown"]


def _policy_terms(batch: Batch, log_probs: Tensor) -> dict[str, Tensor]:
    """What is learned, and whether all rewards were equal, so that nothing is; that is only logged."""
    values = -policy.reinforce_objective(log_probs, batch["judge_advantage"])
    return {
        VERDICT: torch.where(batch["is_shown"], values, 0.0),
        "no_variance": batch["judge_no_variance"].to(values.dtype),
    }


def padded(name: str, tokens: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Tokens as rows that are padded in front, and `is_NAME`, true where there is one."""
    rows, mask = left_pad(tokens, pad, device)
    return {name: rows, f"is_{name}": torch.ones_like(rows, dtype=torch.bool) if mask is None else mask}


def _pair_rows(pairs: Sequence[Pair], pad: int, device: torch.device) -> dict[str, Tensor]:
    """What the judge reads, the right `answer` (0 or 1), and whether there was enough to judge."""
    return {
        **padded("pair", [pair.tokens for pair in pairs], pad, device),
        "answer": torch.tensor([pair.answer - 1 for pair in pairs], device=device),
        "is_shown": torch.tensor([pair.is_shown for pair in pairs], device=device),
    }
