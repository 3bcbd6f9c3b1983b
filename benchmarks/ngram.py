"""Bits per byte of plain n-gram models on the split that `mdlm` trains on: a baseline for trained models.

    python benchmarks/ngram.py                 the text inside Python
    python benchmarks/ngram.py pydoc-prose     its sentences, which `mdlm --preset words` trains on
    python benchmarks/ngram.py my_text.txt     any local text or JSONL file, or a folder prepared as bytes

A model of order n predicts a byte from the n - 1 bytes before it; both splits are read as one continuous text. Counts
come from the training split only, with Witten-Bell smoothing down to a uniform distribution over the 256 bytes.
"""

import json
import math
import sys
from collections import Counter

from samestep.data.tokenizer.vocabulary import Tokenizer
from samestep.data.tokenizer.word import WordTokenizer
from samestep.recipes.mdlm.corpus import DataConfig, load

ORDERS = (1, 2, 3, 4, 5, 6)
NGram = tuple[int, ...]


def counts(tokens: list[int], longest: int) -> tuple[Counter[NGram], Counter[NGram], Counter[NGram]]:
    """Counts of all n-grams of up to `longest` tokens; per context, how many tokens follow, and how many distinct."""
    ngrams = Counter(tuple(tokens[i : i + n]) for n in range(1, longest + 1) for i in range(len(tokens) - n + 1))
    followed: Counter[NGram] = Counter()
    distinct: Counter[NGram] = Counter()
    for ngram, times in ngrams.items():
        followed[ngram[:-1]] += times
        distinct[ngram[:-1]] += 1
    return ngrams, followed, distinct


def bits_per_token(train: list[int], validation: list[int], orders: tuple[int, ...] = ORDERS) -> dict[int, float]:
    """Mean bits per validation token, by the order of the model."""
    longest = max(orders)
    ngrams, followed, distinct = counts(train, longest)
    total = dict.fromkeys(orders, 0.0)
    for i, token in enumerate(validation):
        probability = 1 / 256
        for order in range(1, longest + 1):
            context = tuple(validation[max(0, i - order + 1) : i])
            if len(context) == order - 1 and followed[context]:
                seen = ngrams[(*context, token)] + distinct[context] * probability
                probability = seen / (followed[context] + distinct[context])
            if order in total:
                total[order] -= math.log2(probability)
    return {order: value / len(validation) for order, value in total.items()}


def as_bytes(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """Of tokens that are words, the bytes of their text; any others as they are."""
    return list(tokenizer.decode(tokens).encode("utf-8")) if isinstance(tokenizer, WordTokenizer) else tokens


def main(path: str | None = None) -> None:
    corpus = load(DataConfig(path=path))
    train, validation = (
        as_bytes(rows.tokens[:].tolist(), corpus.tokenizer) for rows in (corpus.train, corpus.validation)
    )
    found = bits_per_token(train, validation)
    facts = {**corpus.describe(), "bits_per_byte": {f"{order}-gram": round(v, 4) for order, v in found.items()}}
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:2])
