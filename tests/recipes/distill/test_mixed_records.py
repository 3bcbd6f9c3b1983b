"""Several data sets: how they are spelled, and how many records of each are kept."""

import json
from functools import partial
from pathlib import Path

import pytest

from samestep import Mixed, UserError
from samestep.data.records.mixture import parse_sources, read_mixture
from samestep.recipes.distill.records import read_records


def write(path: Path, count: int) -> str:
    rows = [{"query": f"{path.stem} {n}", "passage": "p"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_paths_with_weights(tmp_path: Path) -> None:
    assert parse_sources(["a.jsonl:3", "b:c.csv:0.5"]) == [("a.jsonl", 3.0), ("b:c.csv", 0.5)]
    assert parse_sources(["a.jsonl", "b:c.csv"]) == [("a.jsonl", None), ("b:c.csv", None)]
    existing = write(tmp_path / "day:2", 1)
    assert parse_sources([existing]) == [(existing, None)]


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ([], "Name at least one data set"),
        (["a:1", "b"], "every data set a weight.* b has none"),
        (["a:0"], "weight above 0; this is 'a:0'"),
        (["a:-1"], "above 0"),
        (["a:nan"], "above 0"),
        (["a:inf"], "above 0"),
        ([":2"], "above 0"),
        (["a:1", "a:2"], "once, with the sum of its weights; a comes twice"),
    ],
)
def test_spellings_that_are_refused(named: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_sources(named)


def test_weights_are_shares_of_the_draws(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", count) for name, count in (("a", 300), ("b", 900))]
    plain = read_mixture(paths, read_records)
    assert [(source.weight, len(source.records)) for source in plain] == [(300, 300), (900, 900)]
    sources = read_mixture([f"{paths[0]}:3", f"{paths[1]}:1"], read_records)
    assert [(source.path, source.weight) for source in sources] == [(paths[0], 3.0), (paths[1], 1.0)]
    mixed = Mixed([source.records for source in sources], [source.weight for source in sources])
    order = mixed.own_order(batch=1024, seed=0)
    first = [mixed[index].query[0] for _, index in order.ids(0).tolist()]
    assert first.count("a") == 768 and first.count("b") == 256


@pytest.mark.parametrize(
    ("weights", "limit", "kept"),
    [
        ((":1", ":1"), 40, [20, 20]),
        ((":1", ":1"), 100, [30, 70]),  # the first has no more
        ((":3", ":1"), 24, [18, 6]),
        (("", ""), 100, [25, 75]),
        (("", ""), 40, [17, 23]),  # of the second, 40 are read
        ((":1000", ":1"), 20, [19, 1]),  # none is left out
        ((":1", ":1"), 1000, [30, 90]),
    ],
)
def test_a_limit_is_shared(weights: tuple[str, str], limit: int, kept: list[int], tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", count) for name, count in (("a", 30), ("b", 90))]
    sources = read_mixture(
        [path + weight for path, weight in zip(paths, weights)], partial(read_records, limit=limit), limit
    )
    assert [len(source.records) for source in sources] == kept
    assert [source.records[-1].query for source in sources] == [f"a {kept[0] - 1}", f"b {kept[1] - 1}"]


def test_problems_of_all_files_at_once(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", 2)
    bad = [str(tmp_path / name) for name in ("b.jsonl", "c.jsonl")]
    for path in bad:
        Path(path).write_text('{"query": "q", "passage": ""}\n')
    with pytest.raises(UserError) as caught:
        read_mixture([good, *bad], read_records)
    assert all(f"Fix 1 of 1 records of {path}, " in str(caught.value) for path in bad)
    with pytest.raises(UserError, match="at least one record for each of the 2 data sets; the limit is 1"):
        read_mixture([good, write(tmp_path / "d.jsonl", 2)], read_records, limit=1)
