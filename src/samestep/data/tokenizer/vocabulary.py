"""Vocabularies and their special tokens, how those are found, and the interface of every tokenizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from samestep.core.errors import UserError
from samestep.core.json_files import parse_json, write_json

TOKENIZER = "samestep_tokenizer.json"
"""The file that describes a tokenizer, in a folder of its own."""


@dataclass(frozen=True)
class Vocabulary:
    """Which token means what. Tokenizer files hold these field names as JSON keys."""

    size: int
    """Number of all tokens, the special ones included; an embedding may have more rows."""
    mask: int | None
    """Stands for a masked token; None: the vocabulary has no such token."""
    eos: int
    """Ends a document, and pads a row."""
    bos: int | None = None
    """Begins a document."""
    eot: int | None = None
    """Ends a turn of a chat."""
    headers: tuple[int, int] | None = None
    """Stand before and after the role of a message, in a chat."""
    silent: tuple[int, ...] = ()
    """Tokens other than the mask that are never written in a sample: special ones, and parts that make no word."""

    @property
    def required_mask(self) -> int:
        """The mask token, for methods that cannot do without one."""
        if self.mask is None:
            raise UserError("Use a tokenizer with a mask token, named or added with --mask_token; this one has none.")
        return self.mask

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text or a turn."""
        return (self.eos,) if self.eot is None else (self.eos, self.eot)

    def forbidden(self, embedding_size: int) -> list[int]:
        """The tokens that may never be written: the mask, the silent ones, and embedding rows without a token."""
        mask = () if self.mask is None else (self.mask,)
        return sorted({*mask, *self.silent, *range(self.size, embedding_size)})


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, such as `byte`."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Which token means what."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any special one."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of many texts, on all cores if the tokenizer can."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a mask token reads as an underscore."""

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into a folder, which is created if it is missing."""


BYTES = Vocabulary(size=259, mask=256, eos=257, bos=258, silent=(258,))
"""The 256 bytes, then the special tokens."""


class ByteTokenizer:
    """A byte is a token."""

    kind = "byte"
    vocabulary = BYTES

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of many texts."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a mask token reads as an underscore."""
        out = bytearray()
        for token in tokens:
            if token == BYTES.eos:
                break
            if token == BYTES.mask:
                out += b"_"
            elif token < 256:
                out.append(token)
        return out.decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        """Record that tokens are bytes."""
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
"""The usual spellings of each special token, tried where no file names it."""

Specials = dict[str, int | None]
"""By role, the id of a special token."""
Lookup = Callable[[str], int | None]
"""The id of a token, by its spelling."""
KnownIds = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, int]]
"""By role, the ids that a kind of model always has, given the files beside its tokenizer."""


def no_known_ids(records: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """No ids beyond those that the files name."""
    return {}


def read_record(file: Path) -> dict[str, Any]:
    """A JSON object in a file; empty if the file does not exist."""
    try:
        found = parse_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError):
        raise UserError(f"Download or make {file} again; it is not JSON.") from None
    if not isinstance(found, dict):
        raise UserError(f"Download or make {file} again; it is not a JSON object.")
    return found


def find_specials(
    records: Sequence[Mapping[str, Any]], lookup: Lookup, known: Mapping[str, int] | None = None
) -> Specials:
    """The id of each special token: from the first record that names it, else by a usual spelling, else as `known`."""
    known = known or {}
    found: Specials = {}
    for role, spellings in SPELLINGS.items():
        named = (number for record in records for number in _named(record, role, lookup))
        spelled = (lookup(spelling) for spelling in spellings)
        found[role] = next((number for number in (*named, *spelled) if number is not None), known.get(role))
    return found


def _named(record: Mapping[str, Any], role: str, lookup: Lookup) -> Iterator[int | None]:
    """A record's ids for a role: `mask_token_id: 5`, `mask_token: "<mask>"`, `special_tokens: {"mask": 5}`..."""
    inner = record.get("special_tokens")
    sections = (record, inner) if isinstance(inner, Mapping) else (record,)
    for section in sections:
        for key in (f"{role}_token_id", f"{role}_id", f"{role}_token", role):
            yield _number(section.get(key), lookup)


def _number(value: Any, lookup: Lookup) -> int | None:
    if isinstance(value, list) and value:  # several ends of a text: the first one counts
        value = value[0]
    if isinstance(value, Mapping):
        value = value.get("content")
    if isinstance(value, str):
        return lookup(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
