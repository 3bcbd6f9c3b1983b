"""A tokenizer.json of anybody, looked at before the tokenizers library reads it.

The library cannot be interrupted, and where memory is short it ends the process. So what a file may ask for is bounded:
how much its steps make of a text, how many tokens it has, which patterns it searches for.
"""

import base64
import binascii
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import Json, read_sized_object
from samestep.core.pattern_check import LONGEST, pattern_problem

MOST_TOKENS = 1 << 22
"""Tokens, and one more than the largest id. The largest vocabulary that is published has a quarter of them."""
_MOST_BYTES = 128 << 20
_MOST_ADDED = 200_000
_MOST_STEPS = 32
_MOST_GROWTH = 64
"""How many characters the steps may make of one, together."""
_MOST_SPECIAL = 256
"""Special tokens that are put around a text."""
_MOST_WORD = 1000
"""Characters of a word for WordPiece, which takes the square of them."""
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_tokenizer_file(file: Path) -> None:
    """Refuse a file that could take more time or memory than texts are worth. The library checks all else."""
    found = read_sized_object(file, _MOST_BYTES)
    problem = next(_problems(found), None)
    if problem is not None:
        raise UserError(f"Use another tokenizer than {file}: {problem}.")


def check_vocabulary(file: Path) -> None:
    """The same for a vocab.json, which is a table of tokens alone."""
    problem = next(_vocabulary_problems(read_sized_object(file, _MOST_BYTES)), None)
    if problem is not None:
        raise UserError(f"Use another tokenizer than {file}: {problem}.")


def _problems(found: dict[str, Json]) -> Iterator[str]:
    for section in _SECTIONS:
        parts = list(_parts(found.get(section)))
        if len(parts) > _MOST_STEPS:
            yield f"its {section} has {len(parts)} steps, and more than {_MOST_STEPS} are not run"
        for part in parts:
            yield from _part_problems(part, section)
        growth = math.prod(map(_growth, parts))
        if growth > _MOST_GROWTH:
            yield f"its {section} makes up to {growth:,} characters of one, and more than {_MOST_GROWTH} are too many"
    model = found.get("model")
    if isinstance(model, dict):
        yield from _model_problems(model)
    yield from _added_problems(found.get("added_tokens"))


def _parts(section: Json) -> Iterator[dict[str, Json]]:
    """The steps of a section, which may be inside of each other."""
    waiting = [section]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and "type" in part:
            yield part
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _part_problems(part: dict[str, Json], section: str) -> Iterator[str]:
    kind = part["type"]
    for name, value in part.items():
        if name != "precompiled_charsmap" and isinstance(value, str) and len(value) > LONGEST:
            yield f"{name} of its {kind} has {len(value):,} characters"
    pattern = part.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(regex, str) and (problem := pattern_problem(regex)):
        yield f"the pattern {regex[:100]!r} of its {section} could take for ages on some texts, since {problem}"
    if kind == "Precompiled" and _longest_in_map(part.get("precompiled_charsmap")) is None:
        yield f"precompiled_charsmap of its {section} is damaged"
    if kind == "TemplateProcessing":
        yield from _template_problems(part)


def _growth(part: dict[str, Json]) -> int:
    """How many characters a step may make of one. Those of Unicode's own forms are not counted: a file cannot change
    them, and a second one of them adds nothing."""
    if part["type"] == "ByteLevel":
        return 2
    if part["type"] == "Precompiled":
        return _longest_in_map(part.get("precompiled_charsmap")) or 1
    content, pattern = part.get("content"), part.get("pattern")
    if part["type"] != "Replace" or not isinstance(content, str):
        return 1
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(literal, str) and literal:
        return max(1, math.ceil(len(content) / len(literal)))
    return 1 + len(content)  # an empty match is replaced too, and the character after it stays


def _longest_in_map(charsmap: Json) -> int | None:
    """The most characters that SentencePiece's map makes of one; None if it is no such map. It has the size of a trie,
    the trie, and texts that end with a zero."""
    try:
        content = base64.b64decode(charsmap, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or size % 4 or size > len(content) - 4:
        return None
    texts = content[4 + size :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts), 1)


def _template_problems(part: dict[str, Json]) -> Iterator[str]:
    special = part.get("special_tokens")
    for name in ("single", "pair"):
        pieces = part.get(name)
        if not isinstance(pieces, list) or not all(isinstance(piece, dict) for piece in pieces):
            yield f"{name} of its TemplateProcessing is no list of pieces"
            continue
        texts = [_id_of(piece["Sequence"]) for piece in pieces if "Sequence" in piece]
        if len(texts) != len(set(texts)):
            yield f"{name} of its TemplateProcessing repeats the text"
        ids = [_ids_of(special, _id_of(piece["SpecialToken"])) for piece in pieces if "SpecialToken" in piece]
        if sum(ids) > _MOST_SPECIAL:
            yield f"{name} of its TemplateProcessing puts {sum(ids)} special tokens around a text"


def _id_of(piece: Json) -> str:
    return str(piece.get("id")) if isinstance(piece, dict) else ""


def _ids_of(special: Json, name: str) -> int:
    """How many tokens a special one stands for."""
    found = special.get(name) if isinstance(special, dict) else None
    ids = found.get("ids") if isinstance(found, dict) else None
    return len(ids) if isinstance(ids, list) else 1


def _model_problems(model: dict[str, Json]) -> Iterator[str]:
    if model.get("dropout"):
        yield "its model has dropout, so the same text would not always become the same tokens (set it to null)"
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        if isinstance(model.get(name), str) and len(model[name]) > _MOST_SPECIAL:
            yield f"{name} of its model has {len(model[name]):,} characters"
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > _MOST_WORD:
        yield f"max_input_chars_per_word of its model is {word}, and more than {_MOST_WORD} takes too long"
    prefix = model.get("continuing_subword_prefix")
    if prefix and not all(_second_of(merge).startswith(str(prefix)) for merge in _list(model.get("merges"))):
        # The library would cut off what is not there, and end the process.
        yield "a merge of its model has a second part without continuing_subword_prefix"
    yield from _vocabulary_problems(model.get("vocab"))


def _second_of(merge: Json) -> str:
    """A merge is a pair, or a text with a space between its parts."""
    parts = merge.split(" ", 1) if isinstance(merge, str) else _list(merge)
    return str(parts[1]) if len(parts) > 1 else ""


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _vocabulary_problems(vocabulary: Json) -> Iterator[str]:
    """Of a table from token to id, or of a list of tokens with a score each."""
    if isinstance(vocabulary, dict):
        yield from _id_problems(vocabulary.values())
        yield from _token_problems(vocabulary)
    elif isinstance(vocabulary, list):
        tokens = [entry[0] for entry in vocabulary if isinstance(entry, list) and entry]
        yield from _token_problems(tokens)
        if len(tokens) > MOST_TOKENS:
            yield f"it has {len(tokens):,} tokens, and more than {MOST_TOKENS:,} are too many"


def _added_problems(added: Json) -> Iterator[str]:
    entries = [entry for entry in _list(added) if isinstance(entry, dict)]
    if len(entries) > _MOST_ADDED:
        yield f"it has {len(entries):,} added tokens, and more than {_MOST_ADDED:,} are too many"
    yield from _id_problems(entry["id"] for entry in entries if "id" in entry)
    yield from _token_problems(entry.get("content") for entry in entries)


def _id_problems(ids: Iterable[Any]) -> Iterator[str]:
    wrong = next((number for number in ids if type(number) is not int or not 0 <= number < MOST_TOKENS), None)
    if wrong is not None:
        yield f"a token has the id {str(wrong)[:100]}, and ids are numbers from 0 to {MOST_TOKENS - 1:,}"


def _token_problems(tokens: Iterable[Any]) -> Iterator[str]:
    wrong = next((token for token in tokens if not isinstance(token, str) or len(token) > LONGEST), None)
    if wrong is not None:
        yield f"the token {str(wrong)[:50]!r} is no text of at most {LONGEST:,} characters"
