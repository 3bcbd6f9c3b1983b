"""What the judge is shown gives nothing away, and its answer is read from the end of what it wrote; by the odds of its
answers it is right, wrong or undecided."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adapter_toys import bench_of
from samestep import CausalConfig, UserError, World
from samestep.data.tokenizer.vocabulary import ByteTokenizer
from samestep.kit.language_model import ByteModel
from samestep.recipes.gan.judges import (
    JudgeConfig,
    Pair,
    PairWriter,
    VerdictJudge,
    answer_rewards,
    answer_tokens,
    read_answer,
)

BYTES = ByteTokenizer()


def plain(question: str) -> tuple[list[int], list[int]]:
    return BYTES.encode(question), []


def shown(human: str, written: str, human_first: bool = True, **settings: object) -> str:
    pair = PairWriter(BYTES.encode, JudgeConfig(**settings), plain)(human, written, human_first)
    return BYTES.decode(pair.tokens)


def test_the_texts_stand_in_the_wanted_order_between_question_and_answer() -> None:
    text = shown("of a person", "of a model", human_first=False)
    assert text.startswith("Which of two texts did a person write?")
    assert text.endswith("Text 1:\nof a model\n\nText 2:\nof a perso\n\nAnswer: ")


@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, 40))
def test_length_gives_nothing_away(human: str, written: str, limit: int) -> None:
    writer = PairWriter(BYTES.encode, JudgeConfig(max_tokens=limit), plain)
    pairs = [writer(human, written, first) for first in (True, False)]
    swapped = [writer(written, human, first) for first in (True, False)]
    assert len({len(pair.tokens) for pair in (*pairs, *swapped)}) == 1
    assert [pair.answer for pair in pairs] == [1, 2]
    assert pairs[0].tokens == swapped[1].tokens


@pytest.mark.parametrize(("written", "least", "is_shown"), [("", 1, False), ("a", 1, True), ("abc", 4, False)])
def test_too_short_a_completion_is_not_judged(written: str, least: int, is_shown: bool) -> None:
    writer = PairWriter(BYTES.encode, JudgeConfig(min_tokens=least), plain)
    assert writer("a person's text", written, True).is_shown == is_shown


def test_a_chat_template_stands_around_them() -> None:
    def frame(question: str) -> tuple[list[int], list[int]]:
        return BYTES.encode(f"<user>{question}"), BYTES.encode("<model>")

    pair = PairWriter(BYTES.encode, JudgeConfig(mode="generative"), frame)("a", "b", True)
    text = BYTES.decode(pair.tokens)
    assert text.startswith("<user>Which of two texts did a person write? Think about it")
    assert text.endswith("Text 2:\nb<model>")


def test_answers_are_one_token_each() -> None:
    assert answer_tokens(BYTES.encode) == (ord("1"), ord("2"))
    with pytest.raises(UserError, match="a verdict needs one token each"):
        answer_tokens(lambda text: [7, *BYTES.encode(text)])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is dull. \\boxed{2}", 2),
        ("\\boxed{1} or rather \\boxed{ 2 }.", 2),
        ("\\boxed{2} \\boxed{neither}", None),
        ("\\boxed{1", None),
        ("1", None),
        ("\\boxed{12}", None),
        ("", None),
    ],
)
def test_the_last_box_counts(text: str, answer: int | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.parametrize(("answer", "judge", "generator"), [(1, 1.0, 0.0), (2, 0.0, 1.0), (None, -1.0, 0.0)])
def test_an_answer_that_cannot_be_read_fools_nobody(answer: int | None, judge: float, generator: float) -> None:
    assert answer_rewards(answer, 1, JudgeConfig()) == (judge, generator)
    assert answer_rewards(None, 1, JudgeConfig(unparsed_fools=True)) == (-1.0, 1.0)


def test_a_judge_must_be_shown_something() -> None:
    with pytest.raises(UserError, match=r"between 1 and judging\.max_tokens=256"):
        JudgeConfig(min_tokens=300)
    with pytest.raises(UserError, match="min_tokens must be a whole number of at least 1"):
        JudgeConfig(min_tokens=0)


class Says(nn.Module):
    """Gives 1 and 2 the same logits by row, whatever it reads."""

    def __init__(self, ones: list[float], twos: list[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.ones, self.twos, self.dtype = torch.tensor(ones), torch.tensor(twos), dtype

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 259)
        logits[..., ord("1")], logits[..., ord("2")] = self.ones[:, None], self.twos[:, None]
        return logits.to(self.dtype)


@pytest.mark.parametrize(
    ("dtype", "first"), [(torch.float64, [1, 0, 1, 1]), (torch.float32, [1, 0, 1, 1]), (torch.bfloat16, [1, 0, 0.5, 1])]
)
def test_where_it_has_not_decided_it_is_half_right(dtype: torch.dtype, first: list[float]) -> None:
    """8 and 8.001 are the same number in bf16. The last pair has nothing to judge: it is caught."""
    judge = VerdictJudge(bench_of(World.single(), "ddp"), JudgeConfig(), ByteModel(CausalConfig(tied_head=True)))
    network = Says([2.0, 0.0, 8.001, 0.0], [1.0, 3.0, 8.0, 5.0], dtype)
    ids = torch.zeros(4, 2, dtype=torch.int64)
    pairs = [Pair(list(b"x" * size), 1, is_shown=size > 1) for size in (2, 5, 3, 1)]
    rows = judge.ask(network, pairs, ids, step=0, turn=None)
    assert rows["right"].tolist() == rows["judge_reward"].tolist() == first
    assert rows["reward"][2] == pytest.approx(0.5, abs=0.001)
    assert rows["reward"][3] == 0
    swapped = [Pair(pair.tokens, 2, pair.is_shown) for pair in pairs]
    shown = judge.ask(network, swapped, ids, step=0, turn=None)["right"]
    assert shown.tolist() == [*(1 - right for right in first[:3]), 1], (
        "what is right in one order is wrong in the other"
    )


def test_an_answer_that_is_no_number_is_wrong() -> None:
    judge = VerdictJudge(bench_of(World.single(), "ddp"), JudgeConfig(), ByteModel(CausalConfig(tied_head=True)))
    network = Says([torch.nan], [0.0], torch.float32)
    rows = judge.ask(network, [Pair([120], 1, True)], torch.zeros(1, 2, dtype=torch.int64), step=0, turn=None)
    assert rows["right"].tolist() == [0]
