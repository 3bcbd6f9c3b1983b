"""BM25, the ranking by common words that a retriever has to beat.

k1 is 0.9 and b is 0.4, with Lucene's idf ln(1 + (N - n + 0.5) / (n + 0.5)). Words are lowercased runs of letters,
digits and underscores; there is no stemming and no list of stop words.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

K1 = 0.9
B = 0.4
_WORD = re.compile(r"\w+")


def rank_by_bm25(queries: Sequence[str], passages: Sequence[str], top: int) -> list[list[int]]:
    """For each query the numbers of the best passages, best first; ties by number.

    A passage without any word of the query is not listed.
    """
    index = _Index.of(passages)
    return [_best(index.scores(query), top) for query in queries]


def words(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class _Index:
    """Which passages have which words, and what each word adds to a passage's score."""

    size: int
    numbers: dict[str, int]
    starts: np.ndarray
    """Where the entries of each word begin; one more than there are words."""
    passages: np.ndarray
    gains: np.ndarray

    @classmethod
    def of(cls, passages: Sequence[str]) -> "_Index":
        numbers: dict[str, int] = {}
        found = [[numbers.setdefault(word, len(numbers)) for word in words(passage)] for passage in passages]
        lengths = np.array([len(ids) for ids in found], dtype=np.int64)
        flat = np.array([word for ids in found for word in ids], dtype=np.int64)
        pairs, counts = np.unique(flat * len(found) + np.repeat(np.arange(len(found)), lengths), return_counts=True)
        word, passage = np.divmod(pairs, max(len(found), 1))  # sorted by word, then by passage
        having = np.bincount(word, minlength=len(numbers))
        idf = np.log1p((len(found) - having + 0.5) / (having + 0.5))
        relative = lengths / max(lengths.sum() / max(len(found), 1), 1e-9)
        gains = idf[word] * counts / (counts + K1 * (1 - B + B * relative[passage]))
        return cls(len(found), numbers, np.concatenate([[0], np.cumsum(having)]), passage, gains)

    def scores(self, query: str) -> np.ndarray:
        """The score of every passage; a word that the query repeats counts as often."""
        total = np.zeros(self.size)
        for word, times in Counter(words(query)).items():
            if (number := self.numbers.get(word)) is not None:
                span = slice(self.starts[number], self.starts[number + 1])
                total[self.passages[span]] += times * self.gains[span]
        return total


def _best(scores: np.ndarray, top: int) -> list[int]:
    if 0 < top < len(scores):
        candidates = np.flatnonzero(scores >= np.partition(scores, -top)[-top])  # with all that tie with the last
    else:
        candidates = np.arange(len(scores))
    candidates = candidates[scores[candidates] > 0]
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top].tolist()
