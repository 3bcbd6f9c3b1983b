"""The settings in a model's folder that are used here: which file has which, and what each may be.

A folder may come from anybody. A number in the place of a list is a sentence that names file and field, and so is a
count that would build for ages. What only transformers looks at is left to it.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.json_files import Json, read_sized_object
from samestep.core.tokenizer_file import MOST_TOKENS

CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
MOST_BYTES = 8 << 20
_SMALL_FILES = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.txt")
_LARGE_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "*.index.json")
_MOST_COUNT = 2_000_000
_COUNT = re.compile(r"(?:num|n)_.*|.*(?:layers|depth|depths|experts|labels)")
"""Settings that transformers makes lists of, or parts of a network."""
_LARGEST = 1 << 48


@dataclass(frozen=True)
class _Kind:
    """What a value may be; null is always left to whoever reads it."""

    words: str
    fits: Callable[[Json], bool]


def _is_whole(value: Json) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _is_number(value: Json) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_token(value: Json) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


def _is_list(value: Json, fits: Callable[[Json], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_named_template(value: Json) -> bool:
    return isinstance(value, dict) and _is_text(value.get("name")) and _is_text(value.get("template"))


def _is_table_by_id(value: Json) -> bool:
    if not isinstance(value, dict) or not all(map(_is_token, value.values())):
        return False
    return all(re.fullmatch("[0-9]{1,9}", number) and int(number) < MOST_TOKENS for number in value)


_TEXT = _Kind("a text", _is_text)
_TEXTS = _Kind("a list of texts", lambda value: _is_list(value, _is_text) and bool(value))
_WHOLE = _Kind("a whole number", _is_whole)
_SIZE = _Kind("a whole number above 0", lambda value: _is_whole(value) and value > 0)
_NUMBER = _Kind("a number", _is_number)
_LENGTH = _Kind("a number above 0", lambda value: _is_number(value) and value > 0)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_TABLE = _Kind("a table", lambda value: isinstance(value, dict))
_IDS = _Kind("the number of a token, or a list of them", lambda v: _is_whole(v) or (_is_list(v, _is_whole) and bool(v)))
_TOKEN = _Kind("a token, as a text or a table with its content", _is_token)
_TOKENS = _Kind("tokens", lambda value: isinstance(value, dict) or _is_list(value, _is_token))
_TEMPLATE = _Kind(
    "a template, or a list of templates with their names", lambda v: _is_text(v) or _is_list(v, _is_named_template)
)
_BY_ID = _Kind(f"a table of tokens by their numbers, below {MOST_TOKENS:,}", _is_table_by_id)

_SPECIAL = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
_FIELDS: Mapping[str, Mapping[str, _Kind]] = {
    CONFIG: {
        "architectures": _TEXTS,
        "model_type": _TEXT,
        "auto_map": _TABLE,
        "quantization_config": _TABLE,
        "torch_dtype": _TEXT,
        "dtype": _TEXT,
        "rope_scaling": _TABLE,
        "rope_parameters": _TABLE,
        "tie_word_embeddings": _FLAG,
        "is_encoder_decoder": _FLAG,
        "hidden_act": _TEXT,
        "initializer_range": _NUMBER,
        "eos_token_id": _IDS,
        "bos_token_id": _IDS,
        "pad_token_id": _WHOLE,
        **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), _SIZE),
        **dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim"), _SIZE),
        **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length"), _LENGTH),
    },
    GENERATION: {"eos_token_id": _IDS, "bos_token_id": _IDS, "pad_token_id": _WHOLE},
    TOKENIZER_CONFIG: {
        "model_max_length": _LENGTH,
        "chat_template": _TEMPLATE,
        "tokenizer_class": _TEXT,
        "added_tokens_decoder": _BY_ID,
        "extra_special_tokens": _TOKENS,
        "additional_special_tokens": _TOKENS,
        **{f"{name}_token": _TOKEN for name in _SPECIAL},
    },
}


def check_folder(folder: Path) -> None:
    """Refuse a folder whose files are too large to be what they are called, or whose settings are of another kind."""
    for pattern in _SMALL_FILES:
        for file in folder.glob(pattern):
            _check_size(file)
    for name, fields in _FIELDS.items():
        _check(folder / name, read_sized_object(folder / name, MOST_BYTES), fields)


def _check_size(file: Path) -> None:
    is_large = any(file.match(pattern) for pattern in _LARGE_FILES)
    most = MOST_BYTES << (4 if is_large else 0)
    if file.stat().st_size > most:
        raise UserError(f"Use another folder than {file.parent}: {file.name} has more than {most >> 20} MiB.")


def _check(file: Path, found: dict[str, Json], fields: Mapping[str, _Kind]) -> None:
    for name, value in _settings(found):
        kind = fields.get(name)
        if value is not None and kind is not None and not kind.fits(value):
            raise UserError(
                f"Fix {name} in {file}, or use another folder: it must be {kind.words}, and is {_shown(value)}."
            )
        if file.name == CONFIG and _COUNT.fullmatch(name) and _is_number(value) and value > _MOST_COUNT:
            raise UserError(
                f"Use another folder, or fix {name} in {file}: it is {_shown(value)}, and more than {_MOST_COUNT:,} "
                "cannot be built."
            )


def _settings(found: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """The settings of a file, and those of the parts of a model, such as its text_config."""
    for name, value in found.items():
        yield name, value
        if name.endswith("_config") and isinstance(value, dict) and name != "quantization_config":
            yield from _settings(value)


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
