"""Several texts and records as one corpus, drawn by weights."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from samestep import UserError
from samestep.cli.main import main
from samestep.recipes.mdlm.corpus import BYTES, DataConfig, load
from samestep.verify.trace import RecordedLaunch, count_ids


def records(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_records_are_split_together_and_cut_apart(tmp_path: Path) -> None:
    both = [f"text {n} of both" for n in range(10)]
    one = records(tmp_path / "one.jsonl", *both, *(f"text {n} of one" for n in range(30)))
    two = records(tmp_path / "two.jsonl", *both)
    config = DataConfig([f"{one}:1", f"{two}:3"], sequence_length=8, validation_fraction=0.2, test_fraction=0.2)
    corpus = load(config, tmp_path)
    assert corpus.test is not None and corpus.weights is not None

    def texts(rows: object) -> set[str]:
        tokens = [row["tokens"][: row["length"]].tolist() for row in rows]  # type: ignore[attr-defined]
        joined = "".join(chr(token) if token < 256 else "|" for row in tokens for token in row)
        return set(joined.replace("text", "|text").split("|")) - {""}

    parts = [texts(part) for part in (corpus.train, corpus.validation, corpus.test)]
    assert set.union(*parts) == {*both, *(f"text {n} of one" for n in range(30))}
    assert sum(map(len, parts)) == 40, "no document is in two parts"
    first = corpus.train.sources[0]  # type: ignore[attr-defined]
    assert corpus.weights[: len(first)].sum() == pytest.approx(1) and corpus.weights.sum() == pytest.approx(4)
    assert corpus.describe() == load(config, tmp_path).describe()
    every = corpus.train.rows(np.arange(len(corpus.train))[::-1])["tokens"]
    assert all((corpus.train[n]["tokens"] == row).all() for n, row in enumerate(reversed(every)))
    plain = load(DataConfig([str(one), str(two)], sequence_length=8, limit=400), tmp_path)
    assert plain.weights is None and abs(plain.train.size + plain.validation.size - 400) < 10


def test_few_documents_are_split_by_their_place(tmp_path: Path) -> None:
    paths = [records(tmp_path / f"{name}.jsonl", name * 100) for name in "ab"]
    corpus = load(DataConfig([*map(str, paths)], sequence_length=8), tmp_path)
    assert (corpus.train.size, corpus.validation.size) == (180, 20)


def test_a_text_beside_records(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100)
    path = records(tmp_path / "b.jsonl", *("b" * (10 + n) for n in range(10)))
    corpus = load(DataConfig([f"{tmp_path / 'a.txt'}:1", f"{path}:1"], sequence_length=8), tmp_path)
    assert {int(token) for row in corpus.train for token in row["tokens"]} == {ord("a"), ord("b"), BYTES.eos}
    with pytest.raises(UserError, match=r"Give every data set a weight"):
        load(DataConfig([f"{tmp_path / 'a.txt'}:1", str(path)]))
    (tmp_path / "prepared").mkdir()
    with pytest.raises(UserError, match=r"prepared alone: it is mixed with nothing"):
        load(DataConfig([str(tmp_path / "prepared"), str(path)]))


@pytest.mark.timeout(300)
def test_they_are_drawn_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    many = records(tmp_path / "many.jsonl", *(f"text number {n} of many" for n in range(60)))
    few = records(tmp_path / "few.jsonl", *(f"text number {n} of few" for n in range(10)))
    settings = [f"data.path=[{many}:1,{few}:3]", f"out={tmp_path}", "data.limit=null", "evidence=true", "max_steps=8"]
    settings += ["log.samples=0", "pt_checkpoints=false", "global_batch_size=8", "batch_size=2"]
    drawn = {}
    for ranks, launch in ((1, []), (2, ["--nproc", "2"])):
        assert main(["train", "mdlm", *launch, "--preset=verify", f"name=ranks_{ranks}", *settings]) == 0
        recorded = RecordedLaunch.read(tmp_path / f"ranks_{ranks}", ranks)
        steps = [step for rank in recorded.ranks for (stage, _), step in rank.items() if stage == "pretrain"]
        drawn[ranks] = count_ids(line for step in steps for line in step.updates)
    assert drawn[1] == drawn[2] and sum(drawn[1].values()) == 64
    times = Counter(row for _, row in drawn[1])
    assert max(times.values()) >= 3, "some of the few come often"
