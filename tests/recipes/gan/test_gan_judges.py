"""What the judge is shown gives nothing away, and its answer is read from the end of what it wrote; by the odds of its
answers it is right, wrong or undecided, and what it prefers about a place cancels."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import softplus

from adapter_toys import bench_of
from language_toys import native
from samestep import CausalConfig, UserError, World
from samestep.data.tokenizer.vocabulary import ByteTokenizer
from samestep.kit.language_model import ByteModel
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, load
from samestep.recipes.gan.evaluation import win_rate
from samestep.recipes.gan.judges import (
    JudgeConfig,
    PairWriter,
    VerdictJudge,
    answer_rewards,
    answer_tokens,
    make_judge,
    read_answer,
    template_parts,
)
from samestep.recipes.gan.task import position_bias

BYTES = ByteTokenizer()
PROMPT = "Write.\n"


def plain(question: str) -> tuple[list[int], list[int]]:
    return BYTES.encode(question), []


def shown(human: str, written: str, prompt: str = PROMPT, limit: int | None = None, **settings: object) -> list[str]:
    """What the judge reads in each order."""
    writer = PairWriter(BYTES.encode, JudgeConfig(**settings), plain, limit)
    return [BYTES.decode(tokens) for tokens in writer(prompt, human, written).orders]


def test_both_orders_stand_between_question_and_answer() -> None:
    first, second = shown("of a person", " of a model\n")
    begin = "Which of two texts did a person write? Answer 1 or 2.\n\nBoth texts answer this:\nWrite.\n\n"
    assert first == begin + "Text 1:\nof a pe\n\nText 2:\nof a mo\n\nAnswer: "
    assert second == begin + "Text 1:\nof a mo\n\nText 2:\nof a pe\n\nAnswer: "


def test_the_prompt_is_shown_unless_it_is_not_wanted() -> None:
    assert all("Both texts answer this:\nWrite.\n\nText 1:" in text for text in shown("one text", "another"))
    assert all("2.\n\nText 1:" in text for text in shown("one text", "another", show_prompt=False))


def test_a_long_prompt_is_cut_and_counted() -> None:
    writer = PairWriter(BYTES.encode, JudgeConfig(max_prompt_tokens=5), plain)
    pair = writer("abcdefg", "of a person", "of a model")
    assert pair.is_prompt_cut and "this:\nabcde\n\nText 1:" in BYTES.decode(pair.orders[0])
    assert not writer("abcde", "of a person", "of a model").is_prompt_cut
    small = PairWriter(BYTES.encode, JudgeConfig(max_tokens=20), plain, limit=200)
    fitted = small("p" * 500, "x" * 500, "y" * 500)
    assert fitted.is_prompt_cut and len(fitted.orders[0]) == 200 and fitted.orders[0].count(ord("y")) >= 20


def test_a_template_of_ones_own() -> None:
    own = "Task {{1}}: {prompt}\nA: {text_1}\nB: {text_2}\nWhich is from a book, 1 or 2?"
    assert shown("of a person", "of a model", template=own)[0] == (
        "Task {1}: Write.\nA: of a pe\nB: of a mo\nWhich is from a book, 1 or 2?\n\nAnswer: "
    )
    asking = JudgeConfig(template="{question}|{text_2}|{text_1}")
    for question, wanted in (
        (None, "Which of two texts did a person write? Answer 1 or 2."),
        ("Ok?", "Ok? Answer 1 or 2."),
    ):
        assert asking.parts(question) == [(f"{wanted}|", "text_2"), ("|", "text_1")]
    assert JudgeConfig(template=own).parts("Ok?") == JudgeConfig().parts("Ok?"), "it has no place for a question"


@pytest.mark.parametrize(
    "template",
    ["{text_1}", "{text_1}{text_2}{text_2}", "{text_1}{text_2}{other}", "{text_1!r}{text_2}", "{}{text_1}{text_2}"],
)
def test_a_template_that_cannot_be_filled(template: str) -> None:
    with pytest.raises(UserError, match=r"text_1. and .text_2. once each in judging\.template"):
        JudgeConfig(template=template)
    with pytest.raises(UserError, match=r"Fix judging\.template: .* for braces"):
        JudgeConfig(template="{text_1}{text_2}}")


def test_texts_that_spell_a_field_are_texts() -> None:
    assert "Text 1:\n{text_2} i" in shown("{text_2} is a field", "not a field at all")[0]
    assert template_parts("a{text_1}b{text_2}") == [("a", "text_1"), ("b", "text_2")]


@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, 40))
def test_length_gives_nothing_away(human: str, written: str, limit: int) -> None:
    writer = PairWriter(BYTES.encode, JudgeConfig(max_tokens=limit), plain)
    pair, swapped = writer(PROMPT, human, written), writer(PROMPT, written, human)
    assert len(pair.orders[0]) == len(pair.orders[1])
    assert pair.orders == swapped.orders[::-1], "who wrote what changes nothing but the order"


def held_out_share(texts: Sequence[tuple[str, str, str]], prompts: Sequence[str]) -> float:
    """How often a classifier that was fitted on other prompts tells the first text from the second, by length, last
    character and the whitespace around them: logistic regression on what differs between the two."""
    letters = sorted({text[-1:] for pair in texts for text in pair})

    def features(text: str) -> list[float]:
        known = [len(text) / 10, text != text.lstrip(), text != text.rstrip(), text[-1:].isalnum(), text[-1:] in ".!?"]
        return [*map(float, known), *(float(text[-1:] == letter) for letter in letters)]

    differences = torch.tensor([features(one) for one, _ in texts]) - torch.tensor([features(two) for _, two in texts])
    names = sorted(set(prompts))
    random.Random(2).shuffle(names)
    half = torch.tensor([prompt in names[: len(names) // 2] for prompt in prompts])
    found = 0.0
    for fitted in (half, ~half):
        weights = torch.zeros(differences.shape[1], requires_grad=True)
        optimizer = torch.optim.Adam([weights], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            (softplus(-differences[fitted] @ weights).mean() + 0.01 * weights.square().sum()).backward()
            optimizer.step()
        scores = (differences[~fitted] @ weights).detach()
        found += float((scores > 0).sum() + 0.5 * (scores == 0).sum())
    return found / len(texts)


@pytest.mark.parametrize("written_tokens", [48, 160])
def test_what_is_cut_gives_nothing_away(written_tokens: int) -> None:
    """Paragraphs that people wrote, beside beginnings of others, which stand in for completions: written from a space
    to the limit of tokens, or to their end."""
    texts = load(DataConfig(), seed=0)
    records, draw = [*texts.train.records, *texts.validation.records], random.Random(1)
    writer = PairWriter(BYTES.encode, JudgeConfig(), plain)
    pairs = []
    for record in records:
        other = draw.choice([one for one in records if one.prompt != record.prompt])
        read = writer(record.prompt, record.human, f" {other.human}"[:written_tokens]).orders[0]
        first, second = BYTES.decode(read).split("Text 1:\n")[1].removesuffix("\n\nAnswer: ").split("\n\nText 2:\n")
        pairs.append((first, second))
    assert len(pairs) > 500
    found = held_out_share(pairs, [record.prompt for record in records])
    interval = win_rate(found * len(pairs), len(pairs))
    assert interval.low < 0.5, found  # below it, what it learned from some prompts is wrong for others
    assert sum(first[-1] in ".!?" for first, _ in pairs) < len(pairs) / 20
    assert sum(second[-1] in ".!?" for _, second in pairs) < len(pairs) / 20


@pytest.mark.parametrize(
    ("written", "least", "is_shown"), [("", 1, False), ("a", 1, True), ("ab", 2, True), ("abc", 4, False)]
)
def test_too_short_a_completion_is_not_judged(written: str, least: int, is_shown: bool) -> None:
    writer = PairWriter(BYTES.encode, JudgeConfig(min_tokens=least), plain)
    assert writer(PROMPT, "a person's text", written).is_shown == is_shown
    assert not writer(PROMPT, "", "a completion").is_shown, "there is nothing to compare with"


def test_a_chat_template_stands_around_them() -> None:
    def frame(question: str) -> tuple[list[int], list[int]]:
        return BYTES.encode(f"<user>{question}"), BYTES.encode("<model>")

    pair = PairWriter(BYTES.encode, JudgeConfig(mode="generative"), frame)(PROMPT, "ab", "cd")
    text = BYTES.decode(pair.orders[0])
    assert text.startswith("<user>Which of two texts did a person write? Think about it")
    assert text.endswith("Text 2:\nc<model>")


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


class Prefers(nn.Module):
    """Gives the answers 1 and 2 logits by how many x a text has, and by a bias for the first text."""

    def __init__(self, bias: float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.bias, self.dtype = bias, dtype

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 259, dtype=torch.float64)
        for row, line in enumerate(tokens):
            first, second = BYTES.decode(line.tolist()).split("Text 1:\n")[-1].split("\n\nText 2:\n")
            logits[row, :, ord("1")] = 8.0 + first.count("x") + self.bias
            logits[row, :, ord("2")] = 8.0 + second.count("x")
        return logits.to(self.dtype)


def judged(
    network: nn.Module, *texts: tuple[str, str], judge: type = VerdictJudge, **settings: object
) -> dict[str, Tensor]:
    """The rows of pairs of a person's text and a completion."""
    config = JudgeConfig(**settings)
    writer = PairWriter(BYTES.encode, config, plain)
    bench = replace(bench_of(World.single(), "ddp"), config=GanConfig())
    made = make_judge(bench, config, ByteModel(CausalConfig(tied_head=True)))
    ids = torch.stack([torch.zeros(len(texts), dtype=torch.int64), torch.arange(len(texts))], 1)
    return made.ask(network, [writer(PROMPT, *pair) for pair in texts], ids, step=0, turn=0)


PAIRS = [
    ("xxx and so on", "oxx and so on"),
    ("once upon a", "xx upon a ti"),
    ("abcabc", "abcabc"),
    ("only a person", ""),
]


def test_what_a_judge_prefers_about_a_place_cancels() -> None:
    rows = judged(Prefers(bias=50.0), *PAIRS)
    assert rows["reward"].tolist() == pytest.approx([1 / (1 + torch.e), 1 / (1 + torch.e**-2), 0.5, 0])
    assert rows["right"].tolist() == [[1, 0], [1, 0], [1, 0], [1, 1]], "it always names the first text"
    assert position_bias(rows).tolist() == [0.5, 0.5, 0.5, 0]
    fair = judged(Prefers(bias=0.0), *PAIRS)
    assert fair["reward"].tolist() == pytest.approx(rows["reward"].tolist())
    assert fair["right"].tolist() == [[1, 1], [0, 0], [0.5, 0.5], [1, 1]]
    assert position_bias(fair).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "settings",
    [{}, {"training": "policy_gradient"}, {"mode": "generative", "answer_tokens": 6}],
    ids=["verdict", "drawn", "generative"],
)
def test_the_reward_swaps_with_the_texts(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where answers are sampled, which here are read from any text that has a certain sum."""
    answers = {0: None, 1: 1, 2: 2}
    monkeypatch.setattr("samestep.recipes.gan.judges.read_answer", lambda text: answers[sum(map(ord, text)) % 3])
    network, draw = native(vocab_size=259, max_sequence_length=512).double(), random.Random(3)
    pairs = [("".join(draw.choices("abc xyz", k=30)), "".join(draw.choices("abc xyz", k=30))) for _ in range(24)]
    rows = judged(network, *pairs, **settings)
    swapped = judged(network, *[(two, one) for one, two in pairs], **settings)
    read = rows["parsed"].all(1)
    assert read.sum() > 6
    assert (rows["reward"] + swapped["reward"])[read].tolist() == pytest.approx([1.0] * int(read.sum()), abs=1e-6)
    assert torch.equal(rows["parsed"], swapped["parsed"].flip(1))
    assert len(set(rows["reward"].tolist())) > 1


def test_where_it_has_not_decided_it_is_half_right() -> None:
    """8 and 8.001 are the same number in bf16."""
    for dtype, right in ((torch.float32, [1, 0]), (torch.bfloat16, [0.5, 0.5])):
        assert judged(Prefers(0.001, dtype), ("abcabc", "cbacba"))["right"].tolist() == [right]


class GivesNoNumbers(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.full((*tokens.shape, 259), torch.nan)


def test_an_answer_that_is_no_number_is_wrong() -> None:
    assert judged(GivesNoNumbers(), ("abc", "cba"))["right"].tolist() == [[0, 0]]


def test_a_judge_learns_from_both_orders() -> None:
    """The mean cross-entropy of both; a pair that was not shown counts nothing."""
    config, network = JudgeConfig(), Prefers(bias=1.0)
    judge = VerdictJudge(bench_of(World.single(), "ddp"), config, ByteModel(CausalConfig(tied_head=True)))
    writer = PairWriter(BYTES.encode, config, plain)
    rows = judge.ask(network, [writer(PROMPT, *pair) for pair in PAIRS], torch.zeros(4, 2).long(), step=0, turn=0)
    losses, counts = judge.loss(network, rows)["verdict"], judge.count(rows)
    margins = torch.tensor([[2.0, 0.0], [-1.0, -3.0], [1.0, -1.0]], dtype=torch.float64)
    assert losses.tolist() == pytest.approx([*softplus(-margins).sum(1).tolist(), 0.0])
    assert counts.tolist() == [2, 2, 2, 0]
