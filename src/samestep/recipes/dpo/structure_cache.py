"""Structures are parsed once, and then read from a cache folder, where the hash of the file's bytes is their name."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from samestep import UserError
from samestep.core.records import atomic_file
from samestep.recipes.dpo.structures import MOST_BYTES, Chain, Structure, parse_chains, too_large

_VERSION = 1
"""Counts up whenever a file would be parsed differently."""
_DIGEST = hashlib.sha256().digest_size


def read_structure(path: Path, cache: Path | None) -> Structure:
    """The structure in a file. All ranks may call this at once; without a folder `cache`, nothing is kept."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise too_large(str(path))
        content = path.read_bytes()
    except OSError as problem:
        raise UserError(f"Give a structure file that can be read; {path} cannot: {problem.strerror}.") from None
    sha256 = hashlib.sha256(content).hexdigest()
    kept = cache / f"{sha256}-{_VERSION}.chains" if cache else None
    chains = _kept_chains(kept) if kept else None
    if chains is None:
        chains = parse_chains(content, str(path))
        if kept:
            with suppress(OSError):  # a full disk or a folder of others: the structure is parsed again next time
                write_on_any_rank(kept, _packed(chains))
    return Structure(chains, sha256)


def write_on_any_rank(path: Path, content: bytes) -> None:
    """Write a file that other ranks may be writing, with the same content. The last rename wins."""
    with atomic_file(path, sync=False) as file:
        file.write(content)


def _kept_chains(path: Path) -> tuple[Chain, ...] | None:
    """The chains that were kept; None if there are none, or the file is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, arrays = content[:_DIGEST], content[_DIGEST:]
    return _unpacked(arrays) if hashlib.sha256(arrays).digest() == digest else None


def _packed(chains: tuple[Chain, ...]) -> bytes:
    """Chains as bytes: a hash, then safetensors."""
    text = json.dumps([[chain.id, chain.letters] for chain in chains]).encode()
    arrays = {
        "text": np.frombuffer(text, dtype=np.uint8),
        "coordinates": np.concatenate([chain.coordinates for chain in chains]),
        "resolved": np.concatenate([chain.resolved for chain in chains]),
        "residue_index": np.concatenate([chain.residue_index for chain in chains]),
    }
    content = save(arrays)
    return hashlib.sha256(content).digest() + content


def _unpacked(content: bytes) -> tuple[Chain, ...]:
    arrays = load(content)
    names = json.loads(arrays["text"].tobytes())
    edges = np.cumsum([len(letters) for _, letters in names])[:-1]
    columns = (np.split(arrays[name], edges) for name in ("coordinates", "resolved", "residue_index"))
    return tuple(Chain(*name, *parts) for name, *parts in zip(names, *columns))
