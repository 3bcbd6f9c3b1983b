"""What a tokenizer.json of somebody else may ask for, and what it may not; published ones may all they ask for."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.core.tokenizer_file import MOST_TOKENS, check_tokenizer_file

MODEL = {"type": "BPE", "dropout": None, "vocab": {"a": 0, "b": 1}, "merges": []}
LETTER_A = {"Sequence": {"id": "A", "type_id": 0}}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def in_turn(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: parts}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def template(pieces: list[Any], **special: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": pieces, "pair": [LETTER_A], "special_tokens": special}


def precompiled(size: int, texts: bytes) -> dict[str, Any]:
    content = struct.pack("<I", size) + b"\0" * 8 + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def added(**changes: Any) -> dict[str, Any]:
    return {"id": 2, "content": "<x>", "special": True, "normalized": False, **changes}


DOUBLE = replace({"String": "a"}, "aa")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CLS = {"SpecialToken": {"id": "c", "type_id": 0}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "doubled": ({"normalizer": in_turn("normalizers", [DOUBLE] * 30)}, "its normalizer makes up to 1,073,741,824"),
    "inside": (
        {"normalizer": in_turn("normalizers", [in_turn("normalizers", [DOUBLE] * 4)] * 2)},
        "its normalizer makes up to 256 characters of one",
    ),
    "empty text": ({"normalizer": replace({"String": ""}, "a" * 99)}, "makes up to 100 characters"),
    "empty pattern": ({"normalizer": replace({"Regex": "x*"}, "a" * 99)}, "makes up to 100 characters"),
    "long": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**5}}, "prepend of its Prepend has 100,000"),
    "bytes of bytes": (
        {"pre_tokenizer": in_turn("pretokenizers", [BYTE_LEVEL] * 9)},
        "makes up to 512",
    ),
    "steps": ({"pre_tokenizer": in_turn("pretokenizers", [split("a")] * 40)}, "its pre_tokenizer has 41 steps"),
    "decoder": ({"decoder": in_turn("decoders", [DOUBLE] * 9)}, "its decoder makes up to 512"),
    "backtracking": ({"pre_tokenizer": split("(a+)+$")}, r"the pattern '\(a\+\)\+\$' of its pre_tokenizer could take"),
    "map": ({"normalizer": precompiled(8, b"a" * 500 + b"\0")}, "its normalizer makes up to 500"),
    "map of no size": (
        {"normalizer": precompiled(2**32 - 4, b"")},
        "precompiled_charsmap of its",
    ),
    "repeated": ({"post_processor": template([LETTER_A] * 99)}, "single of its TemplateProcessing repeats the text"),
    "special": ({"post_processor": template([CLS] * 999)}, "single of its TemplateProcessing puts 999 special tokens"),
    "special ids": ({"post_processor": template([CLS], c={"ids": [0] * 999})}, "puts 999 special tokens"),
    "ids": ({"model": {**MODEL, "vocab": {"a": 2**32 - 1}}}, "a token has the id 4294967295"),
    "no ids": ({"model": {**MODEL, "vocab": {"a": "0"}}}, "a token has the id 0"),
    "random": ({"model": {**MODEL, "dropout": 0.1}}, "its model has dropout"),
    "words": ({"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}}, "max_input_chars_per_word"),
    "prefix": (
        {"model": {**MODEL, "continuing_subword_prefix": "#" * 10**6}},
        "continuing_subword_prefix",
    ),
    "cut off": (
        {"model": {**MODEL, "merges": [["a", "b"]], "continuing_subword_prefix": "##"}},
        "a merge of its model has a second part without",
    ),
    "token": ({"model": {**MODEL, "vocab": {"a" * 10**5: 0}}}, "the token 'aaa"),
    "scored": ({"model": {"type": "Unigram", "vocab": [["a" * 10**5, 0.0]]}}, "the token 'aaa"),
    "added": ({"added_tokens": [added(id=number) for number in range(200_001)]}, "it has 200,001 added tokens"),
    "added ids": ({"added_tokens": [added(id=MOST_TOKENS)]}, f"a token has the id {MOST_TOKENS}"),
    "added length": ({"added_tokens": [added(content="a" * 10**5)]}, "the token 'aaa"),
}


def written(folder: Path, changes: dict[str, Any]) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": MODEL, **changes}))
    return file


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_take_too_much_is_refused(name: str, tmp_path: Path) -> None:
    changes, sentence = REFUSED[name]
    with pytest.raises(UserError, match=rf"^Use another tokenizer than .*tokenizer.json: {sentence}|: .*{sentence}"):
        check_tokenizer_file(written(tmp_path, changes))


def test_a_file_of_the_wrong_size_or_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content in ("[]", "1", "{", "[" * 10**6):
        file.write_text(content)
        with pytest.raises(UserError, match=r"Download or make .*tokenizer.json again: "):
            check_tokenizer_file(file)
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(UserError, match=r"tokenizer.json has more than 128 MiB"):
        check_tokenizer_file(file)


PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": {
        "normalizer": in_turn("normalizers", [{"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁")]),
        "post_processor": template([CLS, LETTER_A], c={"id": "c", "ids": [1], "tokens": ["c"]}),
    },
    "albert": {
        "normalizer": in_turn(
            "normalizers",
            [
                replace({"String": "``"}, '"'),
                {"type": "NFKD"},
                {"type": "Lowercase"},
                precompiled(8, "ﷺ".encode() * 18),
            ],
        )
    },
    "deepseek": {"pre_tokenizer": in_turn("pretokenizers", [split(r"\p{N}{1,3}"), split("[一-龥]+"), BYTE_LEVEL])},
    "padded": {"padding": {"strategy": {"Fixed": 128}}, "truncation": {"max_length": 128}},
    "speech": {"added_tokens": [added(id=2 + number, content=f"<|s_{number}|>") for number in range(65536)]},
    "large": {"model": {**MODEL, "vocab": {f"t{number}": number for number in range(262_144)}}},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_published_tokenizers_have_is_fine(name: str, tmp_path: Path) -> None:
    check_tokenizer_file(written(tmp_path, PUBLISHED[name]))
