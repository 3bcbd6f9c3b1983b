"""Tokenizers: what is encoded is decoded, special tokens are found or asked for, and what was saved is read again."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.tokenizer import load_tokenizer, read_tokenizer
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.subword import SMALLEST, SubwordTokenizer, train_bpe
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer, Tokenizer, Vocabulary

TEXT = ["the cat sat on the mat and the dog sat on the cat\n" * 5, "naïve ☃ coffee\n\n  indented"]


BPE = train_bpe(TEXT, 300)


@pytest.fixture
def bpe() -> SubwordTokenizer:
    return BPE


def plain_folder(folder: Path, added: dict[str, bool], base: int = 0) -> Path:
    """A published tokenizer: byte-level, with added tokens (name: whether special) behind `base` made-up ones."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"Ġfiller{i}" for i in range(base - len(alphabet)))]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    for name, special in added.items():
        token = tokenizers.AddedToken(name, special=special, normalized=False)
        inner.add_special_tokens([token]) if special else inner.add_tokens([token])
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    return folder


@given(st.text())
def test_bytes_and_bpe_know_every_text(text: str) -> None:
    for tokenizer in (ByteTokenizer(), BPE):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        together = [tokens.tolist() for tokens in tokenizer.encode_all([text, "", text])]
        assert together == [tokenizer.encode(text), [], tokenizer.encode(text)]


@given(st.text(alphabet="abc é☃\n"))
def test_characters_are_tokens(text: str) -> None:
    tokenizer = CharTokenizer.of("abc é☃\n")
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokens.tolist() for tokens in tokenizer.encode_all([text])] == [tokenizer.encode(text)]


def test_special_tokens_read_as_they_should(bpe: SubwordTokenizer) -> None:
    char = CharTokenizer.of("hi")
    for tokenizer in (ByteTokenizer(), char, bpe):
        v = tokenizer.vocabulary
        h, i = tokenizer.encode("h")[0], tokenizer.encode("i")[0]
        assert v.bos is not None
        assert tokenizer.decode([h, v.mask, v.bos, i, v.eos, h]) == "h_i"
        assert v.mask not in tokenizer.encode("hi") and v.size > max(v.mask, v.eos, v.bos)


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_what_is_saved_is_read_again(tmp_path: Path, bpe: SubwordTokenizer, kind: str) -> None:
    made: dict[str, Tokenizer] = {"byte": ByteTokenizer(), "char": CharTokenizer.of("abc é"), "bpe": bpe}
    made[kind].save(tmp_path / "a" / "tokenizer")
    again = load_tokenizer(tmp_path / "a" / "tokenizer")
    assert again.kind == kind
    assert again.vocabulary == made[kind].vocabulary
    assert again.encode("abc é") == made[kind].encode("abc é")


def test_no_tokenizer_means_bytes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "none"):
        assert load_tokenizer(folder).vocabulary == BYTES


def test_bpe_is_the_same_each_time_and_joins_what_is_frequent(bpe: SubwordTokenizer) -> None:
    again = train_bpe(iter(TEXT), 300)
    assert again.inner.to_str() == bpe.inner.to_str()
    assert len(bpe.encode(" the")) == 1
    assert bpe.vocabulary.size == 300
    assert bpe.vocabulary.headers is not None and bpe.vocabulary.eot is not None


def test_text_that_spells_a_special_token_is_text(tmp_path: Path, bpe: SubwordTokenizer) -> None:
    bpe.save(tmp_path)
    for tokenizer in (bpe, load_tokenizer(tmp_path)):
        tokens = tokenizer.encode("a <|mdm_mask|><|endoftext|> b")
        assert tokenizer.vocabulary.mask not in tokens and tokenizer.vocabulary.eos not in tokens
        assert tokenizer.decode(tokens) == "a <|mdm_mask|><|endoftext|> b"


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match=f"{SMALLEST} or more"):
        train_bpe(TEXT, SMALLEST - 1)


def test_a_llada_folder_has_the_published_ids(tmp_path: Path) -> None:
    names = {f"<|filler_{i}|>": True for i in range(126080, 126349)}
    spelled = {126080: "<|startoftext|>", 126081: "<|endoftext|>", 126336: "<|mdm_mask|>", 126348: "<|eot_id|>"}
    spelled |= {126346: "<|start_header_id|>", 126347: "<|end_header_id|>"}
    added = {spelled.get(126080 + i, name): True for i, name in enumerate(names)}
    folder = plain_folder(tmp_path / "llada", added, base=126080)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llada", "mask_token_id": 126336}))
    tokenizer = read_tokenizer(folder)
    v = tokenizer.vocabulary
    assert (v.bos, v.eos, v.mask, v.headers, v.eot) == (126080, 126081, 126336, (126346, 126347), 126348)
    assert v.size == 126349
    assert {126080, 126346, 126347, 126100} <= set(v.silent)
    assert not {126081, 126336, 126348} & set(v.silent)
    assert tokenizer.decode([*tokenizer.encode("hé"), 126336, 126346, 126081, 5]) == "hé_"


def test_a_llada_folder_is_known_by_its_model_type_when_its_tokens_are_called_otherwise(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {f"<|x{i}|>": True for i in range(269)}, base=126080)
    (folder / "config.json").write_text(json.dumps({"model_type": "llada"}))
    v = read_tokenizer(folder).vocabulary
    assert (v.bos, v.eos, v.mask, v.headers, v.eot) == (126080, 126081, 126336, (126346, 126347), 126348)


def test_special_tokens_come_from_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {"<hide>": True, "<stop>": True, "<|mask|>": True, "plain": False})
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "<hide>"}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    v = read_tokenizer(folder).vocabulary
    assert (v.mask, v.eos, v.bos, v.headers) == (256, 257, None, None)
    assert v.silent == (258,)


def test_a_missing_mask_is_asked_for_and_may_be_named_or_added(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {"<|endoftext|>": True, "<other>": True})
    with pytest.raises(UserError, match=r"mask token with --mask_token.*'new'") as refusal:
        load_tokenizer(folder)
    assert "\n" not in str(refusal.value)
    assert read_tokenizer(folder, mask_token="<other>").vocabulary.mask == 257
    assert read_tokenizer(folder, mask_token="257").vocabulary.mask == 257
    added = read_tokenizer(folder, mask_token="new")
    assert (added.vocabulary.mask, added.vocabulary.size) == (258, 259)
    added.save(tmp_path / "kept")
    assert load_tokenizer(tmp_path / "kept").vocabulary == added.vocabulary
    with pytest.raises(UserError, match="'<none>' is none"):
        read_tokenizer(folder, mask_token="<none>")


def test_an_end_is_asked_for_too_and_ids_beyond_the_tokenizer_are_refused(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {"[MASK]": True})
    with pytest.raises(UserError, match="--eos_token"):
        read_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [900, 5]}))
    with pytest.raises(UserError, match=r"name the token 900, but tokenizer\.json ends at 256"):
        read_tokenizer(folder)


def test_folders_without_a_readable_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"with a tokenizer\.json in it; .* has nothing"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"with a tokenizer\.json in it; .* has tokenizer_config\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot read it"):
        load_tokenizer(tmp_path)
    (tmp_path / "samestep_tokenizer.json").write_text('{"kind": "char"}')
    with pytest.raises(UserError, match="is not as it was written"):
        load_tokenizer(tmp_path)


def test_without_the_library_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_folder(tmp_path, {"[MASK]": True})
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'samestep\[mdlm\]'"):
        load_tokenizer(tmp_path)


def older(folder: Path, vocab: object, metadata: object = None) -> Path:
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "metadata.json").write_text(json.dumps(metadata or {}))
    return folder


def test_an_older_vocabulary_gets_a_mask_and_an_end_behind_its_last_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(older(tmp_path, {"a": 0, "b": 1, "\n": 2}))
    assert tokenizer.vocabulary == Vocabulary(5, mask=3, eos=4)
    assert tokenizer.encode("b\na") == [1, 2, 0]
    with pytest.raises(UserError, match="the character 'z', which is not among the 3"):
        tokenizer.encode("az")


@pytest.mark.parametrize(
    ("vocab", "metadata", "expected"),
    [
        ({"a": 0, "<mask>": 1, "<eos>": 2}, {}, (1, 2, 3)),
        ({"char_to_idx": {"a": 0, "[MASK]": 3}, "vocab_size": 9}, {"vocab_size": 6}, (3, 4, 6)),
        ({"a": 0, "b": 7}, {"mask_token_id": 20, "eos_token_id": 7}, (20, 7, 21)),
        ({"a": 0, "<pad>": 1}, {"special_tokens": {"mask": 5}}, (5, 1, 6)),
        ({"stoi": {"a": 0}, "itos": {"0": "a"}}, {"mask_token": 1}, (1, 2, 3)),
    ],
)
def test_older_vocabularies_say_their_special_tokens_in_many_ways(
    tmp_path: Path, vocab: object, metadata: object, expected: tuple[int, int, int]
) -> None:
    v = load_tokenizer(older(tmp_path, vocab, metadata)).vocabulary
    assert (v.mask, v.eos, v.size) == expected
    assert 0 not in v.silent


def test_an_older_vocabulary_may_have_a_token_for_strangers(tmp_path: Path) -> None:
    assert load_tokenizer(older(tmp_path, {"a": 0, "<unk>": 1})).encode("aza") == [0, 1, 0]


@pytest.mark.parametrize(
    ("vocab", "sentence"),
    [
        ({"hello": 0, "a": 1}, r"tokenizer\.json .*such as 'hello'"),
        ({"0": "a"}, "a table from character to number"),
        ({}, "a table from character to number"),
        ([1, 2], "not a JSON object"),
        ({"a": -1}, "a table from character to number"),
    ],
)
def test_other_vocabularies_are_refused(tmp_path: Path, vocab: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_tokenizer(older(tmp_path, vocab))
