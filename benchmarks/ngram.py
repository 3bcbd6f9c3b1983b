"""Bits per byte of plain n-gram models on the split that `mdlm` trains on: what a learned figure is to be held against.

    python benchmarks/ngram.py                 the text inside Python
    python benchmarks/ngram.py my_text.txt     any local text or JSONL file, or a folder prepared as bytes

An order of n predicts a byte from the n - 1 before it, in both regions read as one run; counts come from the training
region only and are smoothed by Witten and Bell's rule down to a uniform guess over the 256 bytes.
"""

import json
import math
import sys
from collections import Counter

from samestep.recipes.mdlm.corpus import DataConfig, load

ORDERS = (1, 2, 3, 4, 5, 6)
Run = tuple[int, ...]


def counts(tokens: list[int], longest: int) -> tuple[Counter[Run], Counter[Run], Counter[Run]]:
    """How often each run of up to `longest` tokens occurs; per context how often it is followed, and by how many."""
    runs = Counter(tuple(tokens[i : i + n]) for n in range(1, longest + 1) for i in range(len(tokens) - n + 1))
    followed: Counter[Run] = Counter()
    kinds: Counter[Run] = Counter()
    for run, times in runs.items():
        followed[run[:-1]] += times
        kinds[run[:-1]] += 1
    return runs, followed, kinds


def bits_per_token(train: list[int], validation: list[int], orders: tuple[int, ...] = ORDERS) -> dict[int, float]:
    """Mean bits per validation token of each order."""
    longest = max(orders)
    runs, followed, kinds = counts(train, longest)
    total = dict.fromkeys(orders, 0.0)
    for i, token in enumerate(validation):
        chance = 1 / 256
        for order in range(1, longest + 1):
            context = tuple(validation[max(0, i - order + 1) : i])
            if len(context) == order - 1 and followed[context]:
                seen = runs[(*context, token)] + kinds[context] * chance
                chance = seen / (followed[context] + kinds[context])
            if order in total:
                total[order] -= math.log2(chance)
    return {order: value / len(validation) for order, value in total.items()}


def main(path: str | None = None) -> None:
    corpus = load(DataConfig(path=path))
    found = bits_per_token(corpus.train.tokens[:].tolist(), corpus.validation.tokens[:].tolist())
    facts = {**corpus.describe(), "bits_per_byte": {f"{order}-gram": round(v, 4) for order, v in found.items()}}
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:2])
