"""Tokenizers for the recipe: a mask token is required, LLaDA's ids are known, older vocabularies are read."""

import json
from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.recipes.mdlm.tokenizer import load_tokenizer, read_tokenizer
from tokenizer_folders import plain_folder


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


def test_a_llada_folder_is_known_by_its_model_type_when_its_tokens_have_other_names(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path, {f"<|x{i}|>": True for i in range(269)}, base=126080)
    (folder / "config.json").write_text(json.dumps({"model_type": "llada"}))
    v = read_tokenizer(folder).vocabulary
    assert (v.bos, v.eos, v.mask, v.headers, v.eot) == (126080, 126081, 126336, (126346, 126347), 126348)


def test_a_missing_mask_is_refused_and_may_be_named_or_added(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="it has no '<none>'"):
        read_tokenizer(folder, mask_token="<none>")


def older(folder: Path, vocab: object, metadata: object = None) -> Path:
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "metadata.json").write_text(json.dumps(metadata or {}))
    return folder


def test_an_older_vocabulary_gets_a_mask_and_an_end_after_its_last_token(tmp_path: Path) -> None:
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
def test_older_vocabularies_name_their_special_tokens_in_many_ways(
    tmp_path: Path, vocab: object, metadata: object, expected: tuple[int, int, int]
) -> None:
    v = load_tokenizer(older(tmp_path, vocab, metadata)).vocabulary
    assert (v.mask, v.eos, v.size) == expected
    assert 0 not in v.silent


def test_an_older_vocabulary_may_have_a_token_for_unknown_characters(tmp_path: Path) -> None:
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
