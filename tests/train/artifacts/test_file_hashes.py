"""Hashes of files: every byte counts, any number of ranks gives the same ones, and no file is read twice."""

import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.train.artifacts import file_hashes
from samestep.train.artifacts.file_hashes import CHUNK, hash_files
from samestep.world.world import World
from toys import Case, on_ranks

WORLD = World.single()
SIZES = [0, 1, 99, 100, 101, 250, 1000]
SMALL = 100
"""The size of a chunk in most tests."""


def content(size: int) -> bytes:
    return bytes(7 * number % 251 for number in range(size))


def by_hand(data: bytes, chunk: int) -> str:
    """With Python's integers, or another loop of numpy's where there are many."""
    parts = [data[start : start + chunk] for start in range(0, max(len(data), 1), chunk)]
    return hashlib.sha256(b"".join(map(chunk_by_hand, parts))).hexdigest()


def chunk_by_hand(part: bytes) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(part), 1 << 20):
        block = part[start : start + (1 << 20)].ljust((1 << 20) + 4, b"\0")
        for offset, factors in zip((0, 4), file_hashes._factors()):
            words = np.frombuffer(block, np.uint64, 1 << 17, offset)
            used = max(1, 1 + np.max(np.flatnonzero(words), initial=0))  # what is zero adds nothing
            if used < 1000:
                total = sum(int(word) * int(factor) for word, factor in zip(words[:used], factors)) % (1 << 64)
            else:
                total = int((words * factors).sum(dtype=np.uint64))
            digest.update(total.to_bytes(8, "little"))
    return digest.update(len(part).to_bytes(8, "little")) or digest.digest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "CHUNK", SMALL)


@given(data=st.binary(max_size=450), chunk=st.integers(1, 120))
def test_the_hash_of_the_hashes_of_chunks(data: bytes, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_hashes, "CHUNK", chunk)
        file_hashes._hash_unchanged.cache_clear()
        (Path(folder) / "a").write_bytes(data)
        assert hash_files([Path(folder) / "a"], WORLD) == [by_hand(data, chunk)]


def test_every_byte_counts(tmp_path: Path, small: None) -> None:
    file, seen = tmp_path / "a", set()
    for place in range(250):
        data = bytearray(content(250))
        data[place] ^= 1
        file.write_bytes(data)
        seen.update(hash_files([file], WORLD))
    assert len(seen) == 250
    assert not hash_files([], WORLD)


@pytest.mark.parametrize("places", [(7,), (1, 5, 9, 13), (3, 7), (7, 15), (7, 15, 23, 31)])
def test_signs_of_several_numbers_count(places: tuple[int, ...], tmp_path: Path) -> None:
    """Sums alone would miss two changes of the highest bit of an integer; here it is the sign of numbers."""
    data = np.frombuffer(content(4096), np.uint8).copy()
    (tmp_path / "a").write_bytes(data.tobytes())
    data[list(places)] ^= 0x80
    (tmp_path / "b").write_bytes(data.tobytes())
    first, second = hash_files([tmp_path / "a", tmp_path / "b"], WORLD)
    assert first != second


def test_trailing_zeros_and_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may give less than was asked for; a file of zeros is not an empty one."""
    for size in (0, 1, 8):
        (tmp_path / str(size)).write_bytes(bytes(size))
    assert len({*hash_files([tmp_path / str(size) for size in (0, 1, 8)], WORLD)}) == 3

    class Slow(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            return super().readinto(memoryview(buffer)[:33])

    (tmp_path / "a").write_bytes(content(1000))
    monkeypatch.setattr(file_hashes, "open", lambda path, mode, buffering: Slow(path), raising=False)
    assert hash_files([tmp_path / "a"], WORLD) == [by_hand(content(1000), CHUNK)]


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = tmp_path / "a", []
    file.write_bytes(content(250))
    plain = open

    def counted(path: Any, *args: Any, **options: Any) -> Any:
        opened.append(path)
        return plain(path, *args, **options)

    monkeypatch.setattr(file_hashes, "open", counted, raising=False)
    first = hash_files([file], WORLD)
    assert len(opened) == 3, "chunks"
    assert hash_files([file], WORLD) == first and len(opened) == 3
    before = file.stat()
    data = bytearray(content(250))
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that keeps the time of change
    assert hash_files([file], WORLD) == [by_hand(bytes(data), SMALL)] != first


def test_a_chunk_of_the_real_size(tmp_path: Path) -> None:
    file = tmp_path / "a"
    data = os.urandom(CHUNK + 5)
    file.write_bytes(data)
    assert hash_files([file], WORLD) == [by_hand(data, CHUNK)]


def the_same_at_any_number_of_ranks(world: World, strategy: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_hashes, "CHUNK", SMALL)
        paths = [Path(tempfile.gettempdir()) / f"file_{world.size}_{strategy}_{size}" for size in SIZES]
        if world.is_main:
            for path, size in zip(paths, SIZES):
                path.write_bytes(content(size))
        world.barrier()
        read: list[int] = []
        plain = file_hashes._hash_chunk
        patch.setattr(file_hashes, "_hash_chunk", lambda place: read.append(place[0]) or plain(place))
        assert hash_files(paths, world) == [by_hand(content(size), SMALL) for size in SIZES]
        counts = world.gather(len(read))
        assert sum(counts) == 19 and max(counts) - min(counts) <= 1, "every chunk once, dealt over the ranks"


def a_missing_file_fails_on_all_ranks(world: World, strategy: str) -> None:
    with pytest.raises(Exception, match="nowhere"):
        hash_files([Path(tempfile.gettempdir()) / "nowhere"], world)


def ranks_on_other_hosts_wait(world: World, strategy: str) -> None:
    """They may not see the files of rank 0's host."""
    path = Path(tempfile.gettempdir()) / f"own_{world.size}_{strategy}"
    if world.is_main:
        path.write_bytes(content(250))
    elsewhere = path if world.rank < 2 else Path("not here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "host", "a" if world.rank < 2 else "b")
        world.barrier()
        assert hash_files([elsewhere], world) == [by_hand(content(250), CHUNK)]


CASES: list[Case] = [the_same_at_any_number_of_ranks, a_missing_file_fails_on_all_ranks, ranks_on_other_hosts_wait]
test_on_ranks = on_ranks(CASES, [(1, "lone"), (1, "ddp"), (2, "ddp"), (3, "ddp")])
