"""Metrics of rankings against plain definitions; rankings by vectors and by words, exact and with ties by number."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep import RunFailed, UserError
from samestep.recipes.distill import retrieval as module
from samestep.recipes.distill.evaluation import K1, B, rank_by_bm25, words
from samestep.recipes.distill.retrieval import rank_by_vectors, retrieval_metrics

GRADES = st.dictionaries(st.integers(0, 30), st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0]), max_size=15)


def naive(found: list[int], grades: dict[int, float], k: int) -> dict[str, float]:
    """The definitions, one query at a time."""
    good = {passage for passage, grade in grades.items() if grade > 0}
    dcg = ideal = 0.0
    for rank in range(1, 11):
        if rank <= len(found) and found[rank - 1] in good:
            dcg += grades[found[rank - 1]] / math.log2(1 + rank)
        best = sorted((grades[passage] for passage in good), reverse=True)
        ideal += best[rank - 1] / math.log2(1 + rank) if rank <= len(best) else 0.0
    ranks = [rank for rank, passage in enumerate(found[:10], start=1) if passage in good]
    recall = len(good & set(found[:k])) / len(good)
    return {"ndcg@10": dcg / ideal, "mrr@10": 1 / ranks[0] if ranks else 0.0, f"recall@{k}": recall}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), unique=True), GRADES.filter(lambda g: max(g.values(), default=0) > 0)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 40),
)
def test_metrics_are_their_definitions(queries: list[tuple[list[int], dict[int, float]]], k: int) -> None:
    single = [naive(found, grades, k) for found, grades in queries]
    expected = {name: sum(one[name] for one in single) / len(single) for name in single[0]}
    assert retrieval_metrics(*zip(*queries), ks=(k,)) == pytest.approx(expected)


def test_numbers_worked_out_by_hand() -> None:
    found = retrieval_metrics([[4, 1, 2], [7, 8]], [{1: 1.0, 2: 3.0, 9: 2.0}, {5: 1.0}])
    dcg = 1 / math.log2(3) + 3 / 2
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert found == pytest.approx(
        {"ndcg@10": dcg / ideal / 2, "mrr@10": 0.25, "recall@1": 0.0, "recall@10": 1 / 3, "recall@100": 1 / 3}
    )


def test_queries_without_answers_are_refused() -> None:
    with pytest.raises(UserError, match="2 of 3 have none: number 1, 2"):
        retrieval_metrics([[0], [0], [0]], [{0: 1.0}, {}, {0: 0.0}])
    with pytest.raises(UserError, match="there is no query"):
        retrieval_metrics([], [])


@pytest.mark.parametrize("blocks", [(256, 16384), (1, 1), (3, 7)])
@pytest.mark.parametrize("top", [1, 5, 100])
def test_the_ranking_is_exact_in_blocks_of_any_size(
    top: int, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUERIES", blocks[0])
    monkeypatch.setattr(module, "_PASSAGES", blocks[1])
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(
        -2, 3, (10, 3), generator=generator
    ).float()  # whole numbers: many ties, zeros of both signs
    passages = torch.randint(-2, 3, (40, 3), generator=generator).float()
    scores = (queries @ passages.T).tolist()
    expected = [sorted(range(40), key=lambda number: (-row[number], number))[:top] for row in scores]
    assert rank_by_vectors(queries, passages, top) == expected
    assert rank_by_vectors(queries.bfloat16(), passages.double(), top) == expected


def test_equal_passages_are_in_the_order_of_their_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    one = torch.nn.functional.normalize(torch.randn(50, 96, generator=generator), dim=1)
    passages = one.repeat(7, 1)
    (ranked,) = rank_by_vectors(torch.randn(1, 96, generator=generator), passages, top=350)
    groups = [ranked[start : start + 7] for start in range(0, 350, 7)]
    assert all(group == sorted(group) and len({number % 50 for number in group}) == 1 for group in groups)


@pytest.mark.gpu
def test_the_ranking_is_the_same_on_a_gpu() -> None:
    generator = torch.Generator().manual_seed(2)
    queries, passages = (torch.randn(rows, 384, generator=generator) for rows in (300, 20000))
    passages[10000:] = passages[:10000]
    assert rank_by_vectors(queries.cuda(), passages.cuda(), 100) == rank_by_vectors(queries, passages, 100)
    assert rank_by_vectors(queries.cuda(), passages, 5) == rank_by_vectors(queries, passages.cuda(), 5)


def test_nothing_is_ranked_by_vectors_that_are_not_finite() -> None:
    good, bad = torch.ones(2, 2), torch.tensor([[1.0, math.nan]])
    with pytest.raises(RunFailed, match="vectors of the queries are not finite"):
        rank_by_vectors(bad, good, 1)
    with pytest.raises(RunFailed, match="vectors of the passages are not finite"):
        rank_by_vectors(good, bad / 0, 1)
    assert rank_by_vectors(good, good[:0], 3) == [[], []] and rank_by_vectors(good[:0], good, 3) == []


def bm25_score(query: str, passage: str, passages: list[str]) -> float:
    """The formula, word by word."""
    mean = sum(len(words(other)) for other in passages) / len(passages) or 1
    total = 0.0
    for word in words(query):
        having = sum(word in words(other) for other in passages)
        times = words(passage).count(word)
        idf = math.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
        total += idf * times / (times + K1 * (1 - B + B * len(words(passage)) / mean))
    return total


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdefg"), max_size=12).map(" ".join), min_size=1, max_size=12),
    st.lists(st.sampled_from("abcdefgx"), max_size=6).map(" ".join),
    st.integers(1, 15),
)
def test_bm25_is_its_formula(passages: list[str], query: str, top: int) -> None:
    (ranked,) = rank_by_bm25([query], passages, top)
    scores = [bm25_score(query, passage, passages) for passage in passages]
    matching = [number for number, score in enumerate(scores) if score > 0]
    assert len(ranked) == min(top, len(matching)) and set(ranked) <= set(matching)
    assert [scores[number] for number in ranked] == pytest.approx(sorted(scores, reverse=True)[: len(ranked)])


def test_bm25_finds_words_as_they_are_written_in_any_case() -> None:
    passages = ["Object.__NEW__ creates.", "new objects", "nothing", "new objects"]
    assert rank_by_bm25(["object.__new__", "New?", "none of them", ""], passages, 5) == [[0], [1, 3], [], []]
    assert rank_by_bm25(["a"], [], 5) == [[]] and rank_by_bm25(["a"], [""], 5) == [[]]


def test_bm25_finds_texts_by_their_beginning() -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in (draw.zipf(1.3, 60) % 20000).tolist()) for _ in range(3000)]
    ranked = rank_by_bm25([text[:60] for text in texts[:300]], texts, 100)
    assert sum(number in found[:3] for number, found in enumerate(ranked)) > 250
