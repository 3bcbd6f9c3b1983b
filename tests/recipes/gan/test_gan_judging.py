"""What the judge is shown gives nothing away, and its answer is read from the end of what it wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep import UserError
from samestep.data.tokenizer.vocabulary import ByteTokenizer
from samestep.recipes.gan.judging import JudgeConfig, PairWriter, answer_rewards, answer_tokens, read_answer

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
