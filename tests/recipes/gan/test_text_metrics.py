"""Metrics about texts, against values computed by hand, by brute force and by scipy."""

import math
import random
from collections import Counter

import pytest

from samestep.core.errors import UserError
from samestep.recipes.gan.evaluation import (
    binomial_test,
    distinct_n,
    mean_by_group,
    self_bleu,
    split_words,
    text_metrics,
    win_rate,
)


def texts(*lines: str) -> list[list[str]]:
    return [line.split() for line in lines]


def test_words_and_marks() -> None:
    assert split_words("Don't stop, Émile!\n 3.5") == ["don", "'", "t", "stop", ",", "émile", "!", "3", ".", "5"]


def test_distinct_n_by_hand() -> None:
    some = texts("a b a b", "a b")
    assert distinct_n(some, 1) == 2 / 6
    assert distinct_n(some, 2) == 2 / 4  # ab ba ab, ab
    assert distinct_n(some, 5) == 0.0
    assert distinct_n([], 1) == 0.0


def test_self_bleu_by_hand() -> None:
    # Each: 2 of 3 words and 1 of 2 pairs are in the other text, and both are equally long.
    assert self_bleu(texts("the cat sat", "the cat ran"), max_n=2) == pytest.approx(math.sqrt(2 / 3 * 1 / 2))
    # First: "the" counts once of twice, so 2 of 3 words; it is shorter than 4 words. Second: 2 of 4 words.
    expected = (2 / 3 * math.exp(1 - 4 / 3) + 2 / 4) / 2
    assert self_bleu(texts("the the cat", "the cat sat on"), max_n=1) == pytest.approx(expected)


def test_self_bleu_at_its_ends() -> None:
    assert self_bleu(texts("a b c d e", "a b c d e", "a b c d e")) == pytest.approx(1.0)
    assert self_bleu(texts("a b", "a b")) == pytest.approx(1.0)  # too short for three words in a row
    assert self_bleu(texts("a b c d", "e f g h"), epsilon=1e-9) < 1e-8
    assert self_bleu([[], ["a"]]) < 0.2
    with pytest.raises(UserError, match="at least two, not 1"):
        self_bleu(texts("a b"))


def bleu(words: list[str], references: list[list[str]], max_n: int) -> float:
    """As in the definition, one pair of texts after the other."""
    product = 1.0
    orders = min(max_n, len(words))
    for n in range(1, orders + 1):
        grams = [Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for text in (words, *references)]
        matched = sum(min(count, max(other[gram] for other in grams[1:])) for gram, count in grams[0].items())
        product *= (matched or 0.1) / sum(grams[0].values())
    closest = min((len(reference) for reference in references), key=lambda size: (abs(size - len(words)), size))
    return product ** (1 / orders) * min(1.0, math.exp(1 - closest / len(words)))


def test_self_bleu_is_that_of_the_definition() -> None:
    random.seed(5)
    some = [random.choices("abcde", k=random.randint(1, 12)) for _ in range(30)]
    expected = sum(bleu(text, some[:i] + some[i + 1 :], 4) for i, text in enumerate(some)) / len(some)
    assert self_bleu(some) == pytest.approx(expected, rel=1e-12)


def test_metrics_of_texts() -> None:
    found = text_metrics(["a b a", "", "a b"])
    assert (found["distinct_1"], found["distinct_2"], found["distinct_3"]) == (2 / 5, 2 / 3, 1)
    assert (found["words"], found["words_std"]) == (5 / 3, pytest.approx(math.sqrt(14) / 3))
    assert found["empty"] == 1 / 3
    assert 0 < found["self_bleu"] < 1
    assert "self_bleu" not in text_metrics(["alone"])
    assert text_metrics(["", ""])["distinct_1"] == 0


def test_lengths_are_those_before_texts_were_cut() -> None:
    found = text_metrics(["a b", "a c"], ["a b c d", "a c"])
    assert (found["distinct_1"], found["words"], found["words_std"]) == (0.75, 3, 1)


@pytest.mark.parametrize(("wins", "games"), [(0, 5), (5, 5), (3, 10), (50, 100), (1, 1), (999, 1000)])
def test_win_rate_and_binomial_test_agree_with_scipy(wins: int, games: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    result = stats.binomtest(wins, games, 0.5)
    interval = result.proportion_ci(0.95, method="wilson")
    found = win_rate(wins, games)
    assert found.rate == wins / games
    assert (found.low, found.high) == (pytest.approx(interval.low, abs=1e-12), pytest.approx(interval.high))
    assert binomial_test(wins, games) == pytest.approx(result.pvalue, rel=1e-9)
    assert binomial_test(wins, games, 0.3) == pytest.approx(stats.binomtest(wins, games, 0.3).pvalue, rel=1e-9)


def test_binomial_test_by_hand() -> None:
    assert binomial_test(5, 5) == pytest.approx(2 / 32)
    assert binomial_test(2, 4) == pytest.approx(1.0)


def test_impossible_counts_are_refused() -> None:
    for wins, games in ((-1, 3), (4, 3), (0, 0)):
        for metric in (win_rate, binomial_test):
            with pytest.raises(UserError, match=f"{wins} of {games} is wrong"):
                metric(wins, games)
    with pytest.raises(UserError, match="between 0 and 1"):
        binomial_test(1, 2, 1.0)


def test_mean_by_group() -> None:
    found = mean_by_group([1, 0, 1, 0.5], ["b", "a", "b", "a"])
    assert list(found.items()) == [("a", 0.25), ("b", 1.0)]
    with pytest.raises(UserError, match="2 values and 1 groups"):
        mean_by_group([1, 1], ["a"])
