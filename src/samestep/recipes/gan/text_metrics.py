"""Metrics about generated texts and about who wins: pure functions of plain values.

Texts are lists of words. Counts of wins and of right answers are whole numbers over all ranks, so that the metrics do
not depend on how the texts were shared out.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from samestep import UserError

Words = Sequence[str]
MetricValues = dict[str, float]
_WORD = re.compile(r"\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def distinct_n(texts: Iterable[Words], n: int) -> float:
    """Distinct-n: the share of different n-grams among all n-grams of the texts; 0 if there are none."""
    counts = Counter(ngram for words in texts for ngram in _ngrams(words, n))
    return len(counts) / counts.total() if counts else 0.0


def self_bleu(texts: Sequence[Words], max_n: int = 4, epsilon: float = 0.1) -> float:
    """Self-BLEU: the mean BLEU of each text with all others as its references; 1 if all are equal.

    As is usual for single sentences, no match at a length of n-grams counts as `epsilon` matches, and lengths that a
    text is too short for do not count.
    """
    if len(texts) < 2:
        raise UserError(f"Self-BLEU compares texts with each other: give at least two, not {len(texts)}.")
    orders = [_OtherCounts(texts, n) for n in range(1, max_n + 1)]
    lengths = sorted(map(len, texts))
    return fmean(_bleu(number, len(words), orders, lengths, epsilon) for number, words in enumerate(texts))


def text_metrics(texts: Sequence[str], whole: Sequence[str] | None = None) -> MetricValues:
    """How varied and how long texts are; `empty` is the share of those without a word. `whole` are the texts before
    they were cut, whose lengths count."""
    words = [split_words(text) for text in texts]
    lengths = [len(split_words(text)) for text in (texts if whole is None else whole)]
    return {
        **{f"distinct_{n}": distinct_n(words, n) for n in (1, 2, 3)},
        **({"self_bleu": self_bleu(words)} if len(words) > 1 else {}),
        "words": fmean(lengths),
        "words_std": pstdev(lengths),
        "empty": sum(not found for found in words) / len(words),
    }


@dataclass(frozen=True)
class WinRate:
    """A share of wins, and the interval that it lies in with the given confidence."""

    rate: float
    low: float
    high: float


def win_rate(wins: float, games: int, confidence: float = 0.95) -> WinRate:
    """The share of wins with its Wilson interval, which holds for few games and for shares near 0 and 1. A game may be
    half won."""
    _check_counts(wins, games)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, z2 = wins / games, z * z
    middle = (rate + z2 / (2 * games)) / (1 + z2 / games)
    half = z * math.sqrt(rate * (1 - rate) / games + z2 / (4 * games * games)) / (1 + z2 / games)
    # The ends are exact where rounding would leave 1e-17 of them.
    return WinRate(rate, 0.0 if wins == 0 else middle - half, 1.0 if wins == games else middle + half)


def binomial_test(wins: int, games: int, chance: float = 0.5) -> float:
    """The exact two-sided p-value of so many wins if each game is won with probability `chance`: the probability of
    all outcomes that are no likelier than this one."""
    _check_counts(wins, games)
    if not 0 < chance < 1:
        raise UserError(f"The chance to win must be between 0 and 1, not {chance}.")
    logs = [_log_probability(k, games, chance) for k in range(games + 1)]
    likely = logs[wins] + 1e-7  # outcomes that are equally likely differ by rounding
    return min(1.0, math.fsum(math.exp(log) for log in logs if log <= likely))


def mean_by_group(values: Sequence[float], groups: Sequence[str]) -> MetricValues:
    """The mean of the values of each group, in alphabetical order."""
    if len(values) != len(groups):
        raise UserError(f"Give each value one group; there are {len(values)} values and {len(groups)} groups.")
    by_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups):
        by_group.setdefault(group, []).append(value)
    return {group: fmean(by_group[group]) for group in sorted(by_group)}


def _ngrams(words: Words, n: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


class _OtherCounts:
    """How often n-grams of one length occur in each text, and how often at most in any other text.

    The two largest counts of an n-gram are enough for that, so the cost does not grow with pairs of texts.
    """

    def __init__(self, texts: Sequence[Words], n: int) -> None:
        self._counts = [Counter(_ngrams(words, n)) for words in texts]
        self._first: dict[tuple[str, ...], tuple[int, int]] = {}
        self._second: Counter[tuple[str, ...]] = Counter()
        for number, counts in enumerate(self._counts):
            for ngram, count in counts.items():
                most, owner = self._first.get(ngram, (0, -1))
                self._second[ngram] = max(self._second[ngram], min(count, most))
                self._first[ngram] = (count, number) if count > most else (most, owner)

    def matches(self, number: int) -> tuple[int, int]:
        """Of the n-grams of a text, how many others have as often, and how many there are."""
        matched = 0
        for ngram, count in self._counts[number].items():
            most, owner = self._first[ngram]
            matched += min(count, self._second[ngram] if owner == number else most)
        return matched, self._counts[number].total()


def _bleu(number: int, length: int, orders: Sequence[_OtherCounts], lengths: Sequence[int], epsilon: float) -> float:
    """BLEU of one text with all others as its references; `lengths` are those of all texts, sorted."""
    if length == 0:
        return 0.0
    found = [order.matches(number) for order in orders[:length]]
    place = bisect_left(lengths, length)
    neighbours = [*lengths[max(0, place - 1) : place], *lengths[place + 1 : place + 2]]
    closest = min(neighbours, key=lambda other: (abs(other - length), other))
    precision = fmean(math.log((matched or epsilon) / total) for matched, total in found)
    return math.exp(precision + min(0.0, 1 - closest / length))


def _log_probability(k: int, n: int, chance: float) -> float:
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choices + k * math.log(chance) + (n - k) * math.log1p(-chance)


def _check_counts(wins: float, games: int) -> None:
    if not 0 <= wins <= games or games < 1:
        raise UserError(f"Wins must be between 0 and the number of games, at least 1; {wins} of {games} is wrong.")
