"""What tokens mean: the special ones of a vocabulary, how they are found, and the interface of every tokenizer."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from samestep.core.errors import UserError
from samestep.core.records import write_json

TOKENIZER = "samestep_tokenizer.json"
"""The file in which a tokenizer says what it is, in a folder of its own."""


@dataclass(frozen=True)
class Vocabulary:
    """Which token is what."""

    size: int
    """Number of tokens in all, the special ones included; an embedding may have more rows."""
    mask: int
    """Stands for a hidden token."""
    eos: int
    """Ends a document, and pads a row."""
    bos: int | None = None
    """Begins a document."""
    eot: int | None = None
    """Ends a turn of a chat."""
    headers: tuple[int, int] | None = None
    """Stand before and after the name of who speaks, in a chat."""
    silent: tuple[int, ...] = ()
    """Special tokens beside the mask that are never written in a sample."""

    def forbidden(self, embedding_size: int) -> list[int]:
        """The tokens that may never be written: the mask, the silent ones, and rows that are no token."""
        return sorted({self.mask, *self.silent, *range(self.size, embedding_size)})


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in a word."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Which token is what."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any special one."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of many texts, as fast as this machine can."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a hidden token reads as a low line."""

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into a folder, which is made where there is none."""


BYTES = Vocabulary(size=259, mask=256, eos=257, bos=258, silent=(258,))
"""The 256 bytes, then the special tokens."""


class ByteTokenizer:
    """A byte is a token."""

    kind = "byte"
    vocabulary = BYTES

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode("utf-8"))

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of many texts."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a hidden token reads as a low line."""
        out = bytearray()
        for token in tokens:
            if token == BYTES.eos:
                break
            if token == BYTES.mask:
                out += b"_"
            elif token < BYTES.mask:
                out.append(token)
        return out.decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        """Leave word that tokens are bytes."""
        write_json(folder / TOKENIZER, {"kind": self.kind})


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
