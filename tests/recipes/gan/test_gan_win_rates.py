"""The intervals of the comparison in benchmarks/results: how often they contain what is true, in drawn scores."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "results" / "independent_judge.py"
PROMPTS, SAMPLES, TRIALS = 100, 2, 200


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("independent_judge", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_win_shares_are_over_all_pairs_of_a_prompt(judge: ModuleType) -> None:
    first, second = np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[2.0, 1.0], [0.0, 1.0]])
    assert judge.win_shares(first, second).tolist() == [(0 + 0.5 + 1 + 1) / 4, (0.5 + 0 + 0.5 + 0) / 4]
    assert judge.win_shares(first, first).tolist() == [0.5, 0.5]


def test_a_generator_against_itself_is_even_in_95_of_100_intervals(judge: ModuleType) -> None:
    """Scores of the same distribution, which depend on the prompt."""
    random = np.random.default_rng(0)

    def contains_half() -> bool:
        prompt = random.normal(size=(PROMPTS, 1))
        scores = [prompt + random.gumbel(size=(PROMPTS, SAMPLES)) for _ in range(2)]
        _, low, high = judge.bootstrap(judge.win_shares(*scores), resamples=300)
        return bool(low <= 0.5 <= high)

    assert 0.91 <= np.mean([contains_half() for _ in range(TRIALS)]) <= 0.98


def test_prompts_of_one_document_are_drawn_together(judge: ModuleType) -> None:
    """What is better on a whole page makes intervals by prompt too narrow, and those by document not."""
    random = np.random.default_rng(1)
    documents = [str(number // 4) for number in range(4 * 60)]

    def contain_half() -> list[bool]:
        better = np.repeat(2 * random.normal(size=60), 4)[:, None]
        wins = judge.win_shares(better + random.normal(size=(240, SAMPLES)), random.normal(size=(240, SAMPLES)))
        found = [judge.bootstrap(wins, groups, resamples=300) for groups in (None, documents)]
        return [low <= 0.5 <= high for _, low, high in found]

    by_prompt, by_document = np.mean([contain_half() for _ in range(TRIALS)], axis=0)
    assert by_prompt < 0.85
    assert 0.90 <= by_document <= 0.98


def test_groups_of_one_size_leave_the_mean(judge: ModuleType) -> None:
    wins = np.array([0.25, 0.5, 1.0, 0.75, 0.0, 0.5])
    assert judge.bootstrap(wins)[0] == judge.bootstrap(wins, list("aabbcc"))[0] == wins.mean()
    assert judge.bootstrap(np.full(6, 0.5), list("aabbcc"))[1:] == (0.5, 0.5)
