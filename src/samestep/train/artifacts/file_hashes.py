"""Hashes of whole files, such as the weights of a model, that cost no more than reading them once.

A file is hashed in chunks of a fixed size, and its hash is the one of the hashes of its chunks. So the ranks on the
host of rank 0, and the cores of each, share even a single file, and the hash does not depend on how many they are.
Within a launch no chunk is read again, unless its file has changed since.

SHA-256 alone takes longer than reading: 0.3 GB/s on a core without instructions for it. So of each block two sums are
hashed in its place: its 64-bit integers, each times a fixed odd number for its position, modulo 2^64; and the same of
the integers that begin four bytes later, since the highest bits of the first ones count for little in a sum. That
tells files apart, a change of one byte always; it is no protection against forgery.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np

from samestep.data import noise
from samestep.world.world import World

CHUNK = 1 << 25
_BLOCK = 1 << 20
_SHIFT = 4
_FACTORS = noise.purpose("file hash")
_MOST_THREADS = 8
"""More of them read no faster from one disk."""
Place = tuple[int, Path, int]
"""A chunk: the number of its file, the file, and where in it the chunk begins."""


def hash_files(paths: Sequence[Path], world: World) -> list[str]:
    """The hash of the content of each file, the same on all ranks. Collective; ranks on other hosts only wait."""
    hosts = world.gather(world.host)
    readers = [rank for rank, host in enumerate(hosts) if host == hosts[0]]

    def hash_own() -> list[tuple[int, str]]:
        if world.rank not in readers:
            return []
        own = _places(paths)[readers.index(world.rank) :: len(readers)]
        found = []
        with ThreadPoolExecutor(_threads(len(readers))) as pool:
            for digest in pool.map(_hash_chunk, own):
                found.append(digest)
                world.activity.made_progress()
        return [(number, digest) for (number, _, _), digest in zip(own, found)]

    by_rank = world.run_on_all_ranks("hashing files", hash_own)
    digests = [hashlib.sha256() for _ in paths]
    for turn in range(max(len(by_rank[rank]) for rank in readers)):
        for number, digest in (by_rank[rank][turn] for rank in readers if turn < len(by_rank[rank])):
            digests[number].update(bytes.fromhex(digest))
    return [digest.hexdigest() for digest in digests]


def _places(paths: Sequence[Path]) -> list[Place]:
    """The chunks of all files; an empty file has one."""
    sizes = [path.stat().st_size for path in paths]
    return [
        (number, path, start)
        for number, (path, size) in enumerate(zip(paths, sizes))
        for start in range(0, max(size, 1), CHUNK)
    ]


def _threads(readers: int) -> int:
    """How many this rank may use, where others on the same host use as many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores // readers))


def _hash_chunk(place: Place) -> str:
    _, path, start = place
    found = path.stat()
    return _hash_unchanged(str(path), start, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(maxsize=1 << 16)
def _hash_unchanged(path: str, start: int, state: tuple[int, ...]) -> str:
    """The hash of a chunk of a file that was last changed as `state` says."""
    digest, left, block = hashlib.sha256(), CHUNK, bytearray(_BLOCK + _SHIFT)
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size := _fill(file, memoryview(block)[: min(left, _BLOCK)]):
            block[size:] = bytes(len(block) - size)
            digest.update(_sums(block))
            left -= size
    digest.update((CHUNK - left).to_bytes(8, "little"))
    return digest.hexdigest()


def _fill(file: FileIO, target: memoryview) -> int:
    """Read until a buffer is full or the file ends: one call may read less. Returns how much was read."""
    size = 0
    while size < len(target) and (more := file.readinto(target[size:])):
        size += more
    return size


def _sums(block: bytearray) -> bytes:
    """The two sums of a block and the four zeros behind it."""
    words = (np.frombuffer(block, "<u8", _BLOCK // 8, offset) for offset in (0, _SHIFT))
    return b"".join(np.dot(own, factors).tobytes() for own, factors in zip(words, _factors()))


@lru_cache(maxsize=1)
def _factors() -> tuple[np.ndarray, np.ndarray]:
    """The odd numbers of both sums."""
    high, low = noise.words(_FACTORS, np.arange(2 * (_BLOCK // 8)))
    first, second = np.split(((high << 32) | low | 1).view(np.uint64), 2)
    return first, second
