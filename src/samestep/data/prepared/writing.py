"""Token files on disk: a folder that appears complete or not at all, with shards that are filled one by one."""

import fcntl
import hashlib
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from samestep.core.disk_space import is_disk_full
from samestep.core.errors import UserError
from samestep.core.json_files import replace_folder
from samestep.core.safe_files import open_new
from samestep.data.prepared.split import Region
from samestep.data.tokenizer.vocabulary import Tokenizer


@contextmanager
def fresh_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A staging folder to write into; it is renamed to `target` if all goes well, and removed otherwise."""
    refuse_existing(target, overwrite)
    # Always the same name, so that the next attempt removes what a killed one left.
    staging = target.with_name(f".{target.name}.preparing")
    try:
        if staging.is_symlink():
            raise UserError(f"{staging} is a symbolic link; find out who made it, and remove it.")
        staging.mkdir(parents=True, exist_ok=True)
        with _locked(staging):
            try:
                _empty(staging)
                yield staging
                refuse_existing(target, overwrite)
                replace_folder(staging, target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as problem:
        raise UserError(_explain(target, problem)) from None


def refuse_existing(target: Path, overwrite: bool) -> None:
    """Refuse to replace an existing folder, unless it is prepared data and `overwrite` is given."""
    if not target.name:
        raise UserError(f"Give a folder with a name of its own to write to; {str(target)!r} has none.")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / "metadata.json").is_file():
        raise UserError(f"Give another folder to write to; {target} exists and is not prepared data.")
    if not overwrite:
        raise UserError(f"Give another folder to write to, or --overwrite; {target} exists already.")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"Wait for the other process that is writing to {folder}.") from None
    finally:
        os.close(handle)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _explain(target: Path, problem: OSError) -> str:
    if is_disk_full(problem):
        return f"Free some space on the disk of {target.parent.resolve()}; it is full, and nothing was kept."
    return f"Fix this and prepare {target} again; nothing was kept: {problem}."


class Shards:
    """Tokens appended to files of bounded size, little-endian and with nothing else in them."""

    def __init__(self, folder: Path, name: str, dtype: str, most: int) -> None:
        assert most >= 1
        self.tokens = 0
        self.files: list[dict[str, Any]] = []
        self._folder, self._name, self._dtype, self._most = folder, name, dtype, most
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def append(self, tokens: np.ndarray) -> None:
        """Add tokens; a full shard is closed and the next one opened."""
        while len(tokens):
            if self._file is None:
                self._open_next()
            assert self._file is not None
            here = np.ascontiguousarray(tokens[: self._most - self.files[-1]["tokens"]], dtype=self._dtype)
            self._file.write(here.data)
            self._digest.update(here.data)
            self.files[-1]["tokens"] += len(here)
            self.tokens += len(here)
            tokens = tokens[len(here) :]
            if self.files[-1]["tokens"] == self._most:
                self.close()

    def close(self) -> None:
        """Write the open shard to disk."""
        if self._file is not None:
            with self._file as file:
                file.flush()
                os.fsync(file.fileno())
            self.files[-1]["sha256"] = self._digest.hexdigest()
            self._file = None

    def _open_next(self) -> None:
        name = f"{self._name}-{len(self.files):05d}.bin"
        self._file = open_new(self._folder / name)
        self._digest = hashlib.sha256()
        self.files.append({"file": name, "tokens": 0})


ReportBytes = Callable[[int], None]
"""Called with the bytes of text that are done."""


@dataclass
class TextCounts:
    """How much text there is."""

    collect_characters: bool
    """Whether to collect every character that occurs."""
    bytes: int = 0
    characters: set[str] = field(default_factory=set)
    digests: "array[int]" = field(default_factory=lambda: array("Q"))
    """A number for each document, the same for equal ones."""
    _content: Any = field(default_factory=hashlib.sha256)

    @property
    def documents(self) -> int:
        return len(self.digests)

    def add(self, text: str) -> None:
        """Count a part of a document."""
        content = text.encode("utf-8")
        self.bytes += len(content)
        self._content.update(content)
        if self.collect_characters:
            self.characters.update(text)

    def end_document(self) -> None:
        self.digests.append(int.from_bytes(self._content.digest()[:8], "big"))
        self._content = hashlib.sha256()


@dataclass(frozen=True)
class Writing:
    """Where tokens are written, and with which tokenizer."""

    folder: Path
    tokenizer: Tokenizer
    row_length: int
    shard_bytes: int

    @property
    def dtype(self) -> str:
        """The smallest type that holds every token."""
        return "<u2" if self.tokenizer.vocabulary.size <= 1 << 16 else "<u4"

    def shards(self, regions: Sequence[Region]) -> dict[Region, Shards]:
        """Files for the tokens of each region."""
        most = self.shard_bytes // np.dtype(self.dtype).itemsize
        return {region: Shards(self.folder, region, self.dtype, most) for region in regions}

    def check(self, tokens: np.ndarray) -> None:
        """Refuse text that holds the mask token, which stands for masked tokens only."""
        mask = self.tokenizer.vocabulary.mask
        if mask is not None and (tokens == mask).any():
            raise UserError("Take the mask token out of the text, or name another with --mask_token.")

    def metadata(self, shards: dict[Region, Shards]) -> dict[str, Any]:
        """Write all shards to disk; return what metadata.json records of them."""
        for each in shards.values():
            each.close()
        test = {"test_tokens": shards["test"].tokens} if "test" in shards else {}
        return {
            "sequence_length": self.row_length,
            "total_tokens": sum(each.tokens for each in shards.values()),
            "train_tokens": shards["train"].tokens,
            "val_tokens": shards["validation"].tokens,
            **test,
            "dtype": self.dtype,
            "shards": {region: each.files for region, each in shards.items()},
        }
