"""What the judge is shown and how its answer is read: two texts for one prompt, one of them written by a person.

Both texts are cut to the length of the shorter one, in the judge's tokens, so that length does not give the answer
away. Which comes first is drawn for each sample. A completion with fewer than `min_tokens` tokens is not shown: it
counts as caught, or a generator could win by writing nothing to judge.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from samestep import UserError
from samestep.core.config.bounds import Count, Positive
from samestep.core.config.checked import CheckedConfig

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


QUESTION = with_instruction(DEFAULT_CRITERION, "verdict")
REASONED_QUESTION = with_instruction(DEFAULT_CRITERION, "generative")


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
        """Whether the judge learns from rewards."""
        return self.mode == "generative" or self.training == "policy_gradient"

    def __post_init__(self) -> None:
        """Refuse what shows the judge nothing."""
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
    `limit` is how many tokens the judge's network takes in all; texts are cut so that they fit.
    """

    def __init__(
        self,
        encode: Encode,
        config: JudgeConfig,
        around: Callable[[str], tuple[Sequence[int], Sequence[int]]],
        limit: int | None = None,
    ) -> None:
        is_generative = config.mode == "generative"
        self._encode, self._min_tokens = encode, config.min_tokens
        self._before, after = around(REASONED_QUESTION if is_generative else QUESTION)
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
