"""Which of a vocabulary's tokens are the special ones, by what the files beside it say and by the usual spellings."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError

SPELLINGS: Mapping[str, Sequence[str]] = {
    "mask": ("<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]", "<MASK>"),
    "eos": ("<|endoftext|>", "<|eos|>", "</s>", "<eos>", "[EOS]", "<EOS>"),
    "pad": ("<|pad|>", "<pad>", "[PAD]", "<PAD>"),
    "bos": ("<|startoftext|>", "<|bos|>", "<s>", "<bos>", "[BOS]", "<BOS>"),
    "eot": ("<|eot_id|>", "<|eot|>"),
    "start_header": ("<|start_header_id|>",),
    "end_header": ("<|end_header_id|>",),
}
"""What each special token is called where nothing else is said."""
LLADA = {
    "mask": 126336,
    "eos": 126081,
    "pad": 126081,
    "bos": 126080,
    "eot": 126348,
    "start_header": 126346,
    "end_header": 126347,
}
"""The special tokens of the published LLaDA-8B models."""

Specials = dict[str, int | None]
Lookup = Callable[[str], int | None]


def read_record(file: Path) -> dict[str, Any]:
    """A JSON object in a file; empty where there is no such file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise UserError(f"Fetch or make {file} anew; it is not JSON.") from None
    if not isinstance(found, dict):
        raise UserError(f"Fetch or make {file} anew; it is not a JSON object.")
    return found


def find_specials(records: Sequence[Mapping[str, Any]], lookup: Lookup) -> Specials:
    """The number of each special token: as the first record has it that names one, else by a usual spelling."""
    known = LLADA if any(record.get("model_type") == "llada" for record in records) else {}
    found: Specials = {}
    for role, spellings in SPELLINGS.items():
        named = (number for record in records for number in _named(record, role, lookup))
        spelled = (lookup(spelling) for spelling in spellings)
        found[role] = next((number for number in (*named, *spelled) if number is not None), known.get(role))
    return found


def _named(record: Mapping[str, Any], role: str, lookup: Lookup) -> Iterator[int | None]:
    """What a record says of a role: `mask_token_id: 5`, `mask_token: "<mask>"`, `special_tokens: {"mask": 5}`..."""
    inner = record.get("special_tokens")
    places = (record, inner) if isinstance(inner, Mapping) else (record,)
    for place in places:
        for key in (f"{role}_token_id", f"{role}_id", f"{role}_token", role):
            yield _number(place.get(key), lookup)


def _number(value: Any, lookup: Lookup) -> int | None:
    if isinstance(value, list) and value:  # several ends of a text: the first is the one
        value = value[0]
    if isinstance(value, Mapping):
        value = value.get("content")
    if isinstance(value, str):
        return lookup(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
