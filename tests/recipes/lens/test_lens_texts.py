"""Texts in parts and rows of tokens: nothing is lost, nothing is in two parts, on any number of ranks the same."""

import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from lens_runs import model_folder, train
from numpy.testing import assert_array_equal

from samestep import CausalConfig, LanguageModel, UserError, World
from samestep.core.json_files import read_json
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.kit.language_model import ByteModel, first_tokens
from samestep.recipes.lens.activations import Region, other_samples, positions_of, regions_of, rows_of_samples
from samestep.recipes.lens.config import ActivationDumper, DataConfig, LensConfig
from samestep.recipes.lens.language_model import open_model
from samestep.recipes.lens.texts import LONGEST, PARTS, Texts, load_texts
from samestep.recipes.lens.token_rows import ROWS, WEIGHTS, CutRows, Share, cut, make_rows
from samestep.train.artifacts.array_rows import ArrayRows

BYTES = ByteModel(CausalConfig())
SIGNS = "的一是不了在人有我他这中大来上个国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心。"


def documentation() -> list[str]:
    return list(islice(distinct(passage for _, topic in pydoc_topics() for passage in passages(topic)), 400))


def numbers() -> list[str]:
    draw = random.Random(0)
    return [" ".join(str(draw.randrange(10**6)) for _ in range(draw.randrange(1, 300))) for _ in range(100)]


def chinese() -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices(SIGNS, k=draw.randrange(1, 400))) for _ in range(100)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageModel]:
    """Two tokenizers: bytes, and pieces of words that were learned from English."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, special_tokens=["<s>"])
    inner.train_from_iterator(documentation(), trainer)
    folder = model_folder(tmp_path_factory.mktemp("lens") / "model", inner=inner)
    return {"bytes": BYTES, "words": open_model(LensConfig(model_name=str(folder)), World.single())}


def records(path: Path, texts: Sequence[str]) -> DataConfig:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return DataConfig(str(path))


def rows_of(texts: Texts, folder: Path, columns: int = 64, model: LanguageModel = BYTES) -> CutRows:
    return make_rows(folder / "shares", texts, model, columns, World.single())


def contents(rows: CutRows) -> list[tuple[int, ...]]:
    """The tokens of each row, without padding."""
    found = rows.rows(np.arange(len(rows)))
    return [tuple(tokens[:length]) for tokens, length in zip(found["tokens"].tolist(), found["length"].tolist())]


@pytest.mark.parametrize("text", [documentation, numbers, chinese])
@pytest.mark.parametrize("tokens", ["bytes", "words"])
def test_all_tokens_are_kept(
    tokens: str, text: Callable[[], list[str]], models: dict[str, LanguageModel], tmp_path: Path
) -> None:
    model, texts = models[tokens], list(dict.fromkeys(text()))
    rows = rows_of(load_texts(records(tmp_path / "a.jsonl", texts), 0), tmp_path, model=model)
    every = sum(len(model.encode(each)) for each in texts)
    kept = {
        place
        for start, stop in zip(rows.found.start, rows.found.start + rows.found.length)
        for place in range(start, stop)
    }
    assert every == rows.found.tokens
    assert len(kept) >= 0.99 * every
    assert rows.found.length.max() == 64 - len(first_tokens(model))
    whole = {tuple(model.encode(each)) for each in texts}
    short = [row for row in contents(rows) if len(row) < 32 and row[1:] not in whole]
    assert not short, "the rest of a text is no row of a few tokens"


def test_rows_of_a_text() -> None:
    text, start, stop = cut(np.array([3, 0, 10, 11, 25]), 10)
    assert text.tolist() == [0, 2, 3, 3, 4, 4, 4]
    assert start.tolist() == [0, 0, 0, 6, 0, 10, 20], "the last one has at least half a row"
    assert stop.tolist() == [3, 10, 10, 11, 10, 20, 25]
    _, start, stop = cut(np.array([3]), 1)
    assert (start.tolist(), stop.tolist()) == ([0, 1, 2], [1, 2, 3])


def test_rows_on_any_number_of_ranks(models: dict[str, LanguageModel], tmp_path: Path) -> None:
    model, texts = models["words"], load_texts(DataConfig(limit=60), 0)
    alone = rows_of(texts, tmp_path, 16, model)
    for size in (3, 100):
        shares = [Share(tmp_path / "ranks", rank, size) for rank in range(size)]
        for share in shares:
            share.write(texts, model, 15, lambda: None)
        several = CutRows(texts, shares, model, 16)
        assert contents(several) == contents(alone) and str(several.found) == str(alone.found)


def test_no_row_is_in_two_parts(tmp_path: Path) -> None:
    """Although parts have whole texts, and these texts are different, rows of them may be equal."""
    letter = "Dear reader, this is what every letter begins with. "
    config = records(tmp_path / "a.jsonl", [f"{letter}Number {number} says {number**5}." for number in range(40)])
    rows = rows_of(load_texts(config, 0), tmp_path, 1 + len(letter))
    found = list(zip(contents(rows), rows.found.part.tolist(), strict=True))
    parts = [{row for row, own in found if own == part} for part in range(3)]
    assert [len(part) for part in parts] == list(rows.found.counts.values()), "each once"
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    beginning = (BYTES.bos, *letter.encode())
    assert beginning in parts[0]
    assert (rows.found.again, rows.found.elsewhere) == (31, 8), "the letter's beginning: 32, 4 and 4 of it"
    assert "31 rows that come again in their part, 8 rows that are in a part before theirs" in str(rows.found)


def test_the_built_in_text(tmp_path: Path) -> None:
    texts = load_texts(DataConfig(limit=200), 0)
    counts = [int((texts.part_of == part).sum()) for part in range(3)]
    assert counts == [160, 20, 20]
    assert load_texts(DataConfig(limit=200), 0).digest() == texts.digest()
    assert load_texts(DataConfig(limit=200), 1).digest() != texts.digest(), "another seed keeps others"
    assert rows_of(load_texts(DataConfig(limit=200, test_fraction=0.0), 0), tmp_path).found.counts["test"] == 0


def test_files(tmp_path: Path) -> None:
    sentences = [f"This is sentence number {number} of the whole file." for number in range(40)]
    (tmp_path / "a.txt").write_text(" ".join(sentences))
    plain = load_texts(DataConfig(str(tmp_path / "a.txt")), 0)
    parts = {part: "".join(text for own, _, text in plain.pieces() if own == part) for part in range(3)}
    assert "".join(parts.values()) == " ".join(sentences)
    assert "number 0 " in parts[0] and "number 33 " in parts[1] and "number 39 " in parts[2], "one text, by place"
    assert [round(len(part) / len(" ".join(sentences)), 2) for part in parts.values()] == [0.8, 0.1, 0.1]
    assert [part for part, _, _ in plain.pieces()] == [0, 1, 2], "a text each"
    stories = tmp_path / "b.jsonl"
    stories.write_text("\n".join(json.dumps({"story": sentence}) for sentence in [*sentences, sentences[0]]))
    lines = load_texts(DataConfig(str(stories), columns={"text": "story"}), 0)
    found = list(lines.pieces())
    assert sorted(text for *_, text in found) == sorted(sentences), "what comes twice is used once"
    assert [sum(own == part for own, *_ in found) for part in range(3)] == [32, 4, 4]


def test_too_little_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.txt").write_text("Too little text for three parts.")
    train(tmp_path, "verify", f"data.path={tmp_path / 'c.txt'}", code=2)
    found = " ".join(capfd.readouterr().err.split())
    assert "Give more text, or set activation_dumper.seq_len lower, or leave out the test with" in found
    assert "gives 2 rows for training, 1 for validation and 1 for the test, and each part needs 2" in found
    assert not (tmp_path / "run").exists()
    train(tmp_path, "verify", "data.validation_fraction=0.5", "data.test_fraction=0.5", code=2)
    assert "Set data.validation_fraction and data.test_fraction to less than 1 together" in capfd.readouterr().err


def test_a_saved_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [f"Row {number} of a dataset on the disk." for number in range(30)]
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(tmp_path / "saved")
    found = load_texts(DataConfig(str(tmp_path / "saved")), 0)
    assert sorted(text for *_, text in found.pieces()) == sorted(rows) and found.origins()


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """One text of 6 MB, as a file and as a record: it is read in pieces, and its tokens are on the disk."""
    draw = random.Random(2)
    text = "".join(f"{draw.getrandbits(120)} words\n" for _ in range(140_000))
    (tmp_path / "a.txt").write_text(text)
    size = len(text)
    del text
    tracemalloc.start()
    rows = rows_of(load_texts(DataConfig(str(tmp_path / "a.txt")), 0), tmp_path, 256)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.found.length.sum() > 0.99 * size > 5_900_000
    assert peak < 5_000_000
    long = load_texts(records(tmp_path / "b.jsonl", ["word " * 100_000]), 0)
    assert max(len(text) for *_, text in long.pieces()) <= LONGEST


def test_the_stage_leaves_its_rows_and_nothing_else(tmp_path: Path) -> None:
    run = train(tmp_path, "verify", "until=pretokenize")
    folder = run / "artifacts" / "pretokenize"
    assert sorted(path.name for path in folder.iterdir()) == ["done.json", "tokens"]
    tokens = ArrayRows(folder / "tokens")
    data = read_json(run / "config.json")["config"]["data"]
    wanted = rows_of(load_texts(DataConfig(**data), 0), tmp_path, 16)
    assert_array_equal(tokens.rows(np.arange(len(tokens)))["tokens"], wanted.rows(np.arange(len(wanted)))["tokens"])
    assert {part: tokens.inputs[part] for part in PARTS} == wanted.found.counts
    assert tokens.inputs["text cutting"] == "by tokens"


def test_positions_are_inside_of_the_text() -> None:
    region, samples = Region(0, 0, 50, 4000), np.arange(4000)
    lengths = 2 + samples % 9
    drawn = positions_of(samples, lengths, region, ActivationDumper(seq_len=10, min_position=4), 3)
    assert (drawn >= np.minimum(4, lengths - 1)).all() and (drawn < lengths).all()
    longest = drawn[lengths == 10]
    assert set(longest) == {4, 5, 6, 7, 8, 9}, "all of them occur"
    again = positions_of(samples[7:9], lengths[7:9], region, ActivationDumper(seq_len=10, min_position=4), 3)
    assert (again == drawn[7:9]).all(), "a function of the sample, not of the batch"
    middle = positions_of(
        samples, lengths, region, ActivationDumper(seq_len=10, min_position=4, position="midpoint"), 3
    )
    assert (middle == lengths // 2).all()


def test_others_are_other_samples() -> None:
    region = Region(1, 30, 10, 25)
    samples = np.arange(25)
    others = other_samples(samples, region, 0)
    assert (others != samples).all() and others.min() >= 0 and others.max() < 25
    assert len(set(others)) > 10
    assert (other_samples(samples, region, 1) != others).any()
    assert (other_samples(np.arange(2), Region(0, 0, 2, 2), 0) == [1, 0]).all()


def test_how_many_samples() -> None:
    key = {"train": 30, "validation": 10, "test": 5}
    every = regions_of(ActivationDumper(), key)
    assert [(r.first_row, r.rows, r.samples) for r in every.values()] == [(0, 30, 30), (30, 10, 10), (40, 5, 5)]
    more = regions_of(ActivationDumper(num_samples=100, validation_samples=4, test_samples=2), key)
    assert [r.samples for r in more.values()] == [100, 4, 2]
    assert regions_of(ActivationDumper(test_samples=2), {**key, "test": 0})["test"].samples == 0
    assert rows_of_samples(np.arange(4), more["validation"]).tolist() == [30, 32, 35, 37], "evenly spread"
    assert rows_of_samples(np.arange(28, 32), more["train"]).tolist() == [28, 29, 0, 1]


def test_samples_by_weight() -> None:
    key = {"train": 30, "validation": 10, "test": 5, WEIGHTS: [1.0, 3.0], ROWS: [24, 6]}
    every = regions_of(ActivationDumper(), key)
    rows = rows_of_samples(np.arange(30), every["train"])
    assert ((rows < 24).sum(), (rows >= 24).sum()) == (8, 22), "a quarter and three quarters, rounded"
    assert rows[:8].tolist() == list(range(0, 24, 3)) and rows[8:15].tolist() == [24, 25, 26, 27, 28, 29, 24]
    assert rows_of_samples(np.arange(10), every["validation"]).tolist() == list(range(30, 40))
    with pytest.raises(UserError, match=r"activation_dumper\.num_samples above 30, .* one path of data\.path has no"):
        regions_of(ActivationDumper(), {**key, WEIGHTS: [1.0, 300.0]})


@pytest.mark.timeout(300)
def test_weights_are_kept_on_any_number_of_ranks(tmp_path: Path) -> None:
    for name, count in (("many", 40), ("few", 10)):
        records(tmp_path / f"{name}.jsonl", [f"{name} {n}" for n in range(count)])
    data = f"data.path=[{tmp_path / 'many.jsonl'}:1,{tmp_path / 'few.jsonl'}:3]"
    settings = [data, "data.limit=null", "activation_dumper.num_samples=40", "until=dump"]
    found = {}
    for ranks, launch in ((1, []), (2, ["--nproc", "2"])):
        run = train(tmp_path, "verify", *launch, *settings, name=f"ranks_{ranks}")
        dump = ArrayRows(run / "artifacts" / "dump" / "activations")
        found[ranks] = {name: value.numpy() for name, value in dump.rows(np.arange(len(dump))).items()}
    for name in ("tokens", "position"):
        assert_array_equal(found[1][name], found[2][name])
    texts = ["".join(chr(token) for token in row if token < 128) for row in found[1]["tokens"][:40]]
    assert [sum(text.startswith(name) for text in texts) for name in ("many", "few")] == [10, 30]
