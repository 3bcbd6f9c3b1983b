"""Tokenizers: decoding undoes encoding, special tokens are found, and a saved tokenizer is read again."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.tokenizer import load_tokenizer, read_tokenizer
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.subword import SMALLEST, SubwordTokenizer, train_bpe
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer, Tokenizer
from samestep.data.tokenizer.word import WordTokenizer
from tokenizer_folders import plain_folder

NO_CHARACTERS = {"type": "FixedLength", "length": 0}
"""A step that the library accepts, and that it cannot do."""

TEXT = ["the cat sat on the mat and the dog sat on the cat\n" * 5, "naïve ☃ coffee\n\n  indented"]


BPE = train_bpe(TEXT, 300)
WORDS = WordTokenizer.learned(TEXT, 270)


@pytest.fixture
def bpe() -> SubwordTokenizer:
    return BPE


@given(st.text())
def test_bytes_words_and_bpe_know_every_text(text: str) -> None:
    for tokenizer in (ByteTokenizer(), WORDS, BPE):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        together = [tokens.tolist() for tokens in tokenizer.encode_all([text, "", text])]
        assert together == [tokenizer.encode(text), [], tokenizer.encode(text)]


@given(st.text(alphabet="abc é☃\n"))
def test_characters_are_tokens(text: str) -> None:
    tokenizer = CharTokenizer.of("abc é☃\n")
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokens.tolist() for tokens in tokenizer.encode_all([text])] == [tokenizer.encode(text)]


def test_special_tokens_are_decoded(bpe: SubwordTokenizer) -> None:
    char = CharTokenizer.of("hi")
    for tokenizer in (ByteTokenizer(), char, WORDS, bpe):
        v = tokenizer.vocabulary
        h, i = tokenizer.encode("h")[0], tokenizer.encode("i")[0]
        assert v.bos is not None
        assert tokenizer.decode([h, v.mask, v.bos, i, v.eos, h]) == "h_i"
        assert v.mask not in tokenizer.encode("hi") and v.size > max(v.mask, v.eos, v.bos)


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
def test_what_is_saved_is_read_again(tmp_path: Path, bpe: SubwordTokenizer, kind: str) -> None:
    char = CharTokenizer.of("abc é")
    made: dict[str, Tokenizer] = {"byte": ByteTokenizer(), "char": char, "word": WORDS, "bpe": bpe}
    made[kind].save(tmp_path / "a" / "tokenizer")
    again = load_tokenizer(tmp_path / "a" / "tokenizer")
    assert again.kind == kind
    assert again.vocabulary == made[kind].vocabulary
    assert again.encode("abc é") == made[kind].encode("abc é")


def test_common_words_are_tokens_and_rare_ones_are_spelled() -> None:
    words = WordTokenizer.learned(["the cat sat on the mat; the cat", " the cat"], BYTES.size + 2)
    assert words.words == [" cat", " the"], "the commonest; of equally common ones the first in the alphabet"
    assert words.encode("see the cat") == [*b"see", BYTES.size + 1, BYTES.size]
    assert words.vocabulary.size == BYTES.size + 2
    written = set(range(words.vocabulary.size)) - set(words.vocabulary.forbidden(words.vocabulary.size))
    assert words.decode(sorted(written - set(range(128)) - {BYTES.eos})) == " cat the", (
        "no letters of words that it does not know"
    )
    assert {*b"\n .,()0123456789"} <= written
    few = WordTokenizer.learned(["a cat"], 1000)
    assert few.words == [" cat"], "a single character is a byte, and there are no more words than the text has"
    with pytest.raises(UserError, match="Set vocab_size above 259"):
        WordTokenizer.learned(["a cat"], BYTES.size)


@pytest.mark.parametrize("words", ["5", '["a", 5]', "null"])
def test_damaged_words_are_refused(tmp_path: Path, words: str) -> None:
    (tmp_path / "samestep_tokenizer.json").write_text(f'{{"kind": "word", "words": {words}}}')
    with pytest.raises(UserError, match="is damaged"):
        load_tokenizer(tmp_path)


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


def test_special_tokens_come_from_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {"<hide>": True, "<stop>": True, "<|mask|>": True, "plain": False})
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "<hide>"}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    v = read_tokenizer(folder).vocabulary
    assert (v.mask, v.eos, v.bos, v.headers) == (256, 257, None, None)
    assert v.silent == (258,)


def test_a_missing_end_is_refused_and_so_are_ids_beyond_the_tokenizer(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="again: it is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "samestep_tokenizer.json").write_text('{"kind": "char"}')
    with pytest.raises(UserError, match="is damaged"):
        load_tokenizer(tmp_path)


def test_without_the_library_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_folder(tmp_path, {"[MASK]": True})
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'samestep\[tokenizers\]'"):
        load_tokenizer(tmp_path)


def change_file(folder: Path, **changes: object) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def test_padding_and_truncation_of_a_file_are_not_used(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {"</s>": True})
    padding = {"strategy": {"Fixed": 10**8}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    change_file(folder, padding={**padding, "pad_to_multiple_of": None}, truncation=truncation)
    tokenizer = read_tokenizer(folder)
    assert len(tokenizer.encode("abcdefgh")) == 8
    assert [len(found) for found in tokenizer.encode_all(["abcdefgh", "a"])] == [8, 1]


def test_a_text_that_the_library_gives_up_on_is_a_sentence(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(change_file(plain_folder(tmp_path, {"</s>": True}), pre_tokenizer=NO_CHARACTERS))
    for use in (tokenizer.encode, lambda text: tokenizer.encode_all([text])):
        with pytest.raises(UserError, match=r"Use another tokenizer than that of .*, or other texts: it fails \("):
            use("abcd")


def test_a_file_that_would_explode_is_not_opened(tmp_path: Path) -> None:
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    change_file(plain_folder(tmp_path, {"</s>": True}), normalizer={"type": "Sequence", "normalizers": [twice] * 31})
    with pytest.raises(UserError, match="its normalizer makes up to"):
        read_tokenizer(tmp_path).encode("a")


@pytest.mark.parametrize(
    "change", [{"size": "x"}, {"eos": -1}, {"eos": True}, {"silent": [10**12]}, {"size": 10**12}, {"other": 1}]
)
def test_what_was_saved_and_then_changed_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    CharTokenizer.of("abc").save(tmp_path)
    file = tmp_path / "samestep_tokenizer.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "vocabulary": {**known["vocabulary"], **change}}))
    with pytest.raises(UserError, match=r"its samestep_tokenizer.json is damaged"):
        read_tokenizer(tmp_path)
    file.write_text(json.dumps({**known, "characters": {"ab": 1}}))
    with pytest.raises(UserError, match=r"its samestep_tokenizer.json is damaged"):
        read_tokenizer(tmp_path)
