"""Tokenizers of the `tokenizers` library: trained here, or those of a published model in a local folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.core.library_errors import library_sentence, tokenizer_sentence
from samestep.core.tokenizer_file import check_tokenizer_file
from samestep.data.tokenizer.vocabulary import (
    SPELLINGS,
    TOKENIZER,
    KnownIds,
    Specials,
    Vocabulary,
    find_specials,
    no_known_ids,
    read_record,
)

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
NEW = "new"
"""Given in place of a token: add one to the vocabulary."""
ROLES = ("mask", "eos", "bos", "eot", "start_header", "end_header")
"""The special tokens of a vocabulary that is trained here, in the order of their ids."""
SMALLEST = 256 + len(ROLES)


@dataclass(frozen=True)
class SubwordTokenizer:
    """Pieces of words are tokens."""

    inner: "tokenizers.Tokenizer"
    vocabulary: Vocabulary
    kind: str = "huggingface"
    folder: Path = Path()
    """Where it is from, for messages."""

    def __post_init__(self) -> None:
        """Text that spells a special token is text, not the token."""
        self.inner.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any special one."""
        with tokenizer_sentence(self.folder):
            return self.inner.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of many texts, on all cores."""
        with tokenizer_sentence(self.folder):
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(found.ids, dtype=np.int64) for found in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a mask token reads as an underscore."""
        with tokenizer_sentence(self.folder):
            return "_".join(self.inner.decode(part, skip_special_tokens=True) for part in self._between_masks(tokens))

    def _between_masks(self, tokens: Iterable[int]) -> Iterator[list[int]]:
        """The runs of tokens between mask tokens."""
        run: list[int] = []
        for token in tokens:
            if token == self.vocabulary.eos:
                break
            if token == self.vocabulary.mask:
                yield run
                run = []
            elif token not in self._silent:
                run.append(token)
        yield run

    @cached_property
    def _silent(self) -> frozenset[int]:
        return frozenset(self.vocabulary.silent)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, and beside it which token means what."""
        folder.mkdir(parents=True, exist_ok=True)
        self.inner.save(str(folder / FILE))
        write_json(folder / TOKENIZER, {"kind": self.kind, "vocabulary": asdict(self.vocabulary)})


def train_bpe(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Byte-level BPE, learned from the texts; from little text it may learn fewer tokens than `vocab_size`."""
    if vocab_size < SMALLEST:
        raise UserError(f"Set vocab_size to {SMALLEST} or more: 256 bytes and {len(ROLES)} special tokens.")
    library = _library()
    inner = library.Tokenizer(library.models.BPE())
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SPELLINGS[role][0] for role in ROLES],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return SubwordTokenizer(inner, _vocabulary(inner, find_specials([], inner.token_to_id)), "bpe")


def read_subword(
    folder: Path,
    mask_token: str | None = None,
    eos_token: str | None = None,
    *,
    required: Sequence[str] = ("eos",),
    known_ids: KnownIds = no_known_ids,
) -> SubwordTokenizer:
    """The tokenizer.json of a folder, with its special tokens.

    They are named by `mask_token` and `eos_token` (a token, its number, or "new" to add one), by the other files of the
    folder, by their usual spelling, or by `known_ids`. A tokenizer without one of the `required` ones is refused.
    """
    inner = _open(folder / FILE)
    records = [read_record(folder / f"{name}.json") for name in ("tokenizer_config", "special_tokens_map", "config")]
    special = find_specials(records, inner.token_to_id, known_ids(records))
    special["eos"] = special["eos"] if special["eos"] is not None else special["pad"]
    for role, named in (("mask", mask_token), ("eos", eos_token)):
        if named is not None:
            special[role] = _requested(inner, role, named)
        elif special[role] is None and role in required:
            raise UserError(
                f"Name the {role} token with --{role}_token: one of the tokenizer's tokens, its number, or {NEW!r} to "
                f"add one; no file in {folder} says which it is."
            )
    largest = max(inner.get_vocab().values())
    for role, number in special.items():
        if number is not None and number > largest:
            raise UserError(
                f"Name another {role} token, or download the files of {folder} again: they name the token {number}, "
                f"but {FILE} ends at {largest}."
            )
    return SubwordTokenizer(inner, _vocabulary(inner, special), folder=folder)


def reopen_subword(folder: Path, kind: str, vocabulary: Vocabulary) -> SubwordTokenizer:
    """A tokenizer that was saved with its vocabulary."""
    return SubwordTokenizer(_open(folder / FILE), vocabulary, kind, folder)


def _vocabulary(inner: "tokenizers.Tokenizer", special: Specials) -> Vocabulary:
    """The vocabulary; special tokens and unused ids are silent, except for the ends of a document and of a turn."""
    numbers = set(inner.get_vocab().values())
    added = {number for number, token in inner.get_added_tokens_decoder().items() if token.special}
    size = max(numbers) + 1
    mask, eos, eot = special["mask"], special["eos"], special["eot"]
    assert eos is not None
    start, end = special["start_header"], special["end_header"]
    headers = (start, end) if start is not None and end is not None else None
    named = {number for number in special.values() if number is not None}
    silent = (added | named | (set(range(size)) - numbers)) - {mask, eos, eot}
    return Vocabulary(size, mask, eos, special["bos"], eot, headers, tuple(sorted(silent)))


def _requested(inner: "tokenizers.Tokenizer", role: str, named: str) -> int:
    if named == NEW:
        spelling = next(s for s in SPELLINGS[role] if inner.token_to_id(s) is None)
        inner.add_special_tokens([_library().AddedToken(spelling, special=True, normalized=False)])
        named = spelling
    number = int(named) if named.isdigit() else inner.token_to_id(named)
    if number is None or inner.id_to_token(number) is None:
        raise UserError(f"Give --{role}_token a token of the tokenizer, or {NEW!r} to add one; it has no {named!r}.")
    return number


def _open(file: Path) -> "tokenizers.Tokenizer":
    """A file of anybody. What it says of padding and truncation is left out: a text has the tokens that it has."""
    library = _library()
    check_tokenizer_file(file)
    with library_sentence(f"Download or make {file} again; the tokenizers library cannot read it"):
        found: tokenizers.Tokenizer = library.Tokenizer.from_file(str(file))
    found.no_padding()
    found.no_truncation()
    if not found.get_vocab_size():
        raise UserError(f"Download or make {file} again; it has no tokens.")
    return found


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError("Install the tokenizers library with: pip install 'samestep[tokenizers]'.") from None
    return tokenizers
