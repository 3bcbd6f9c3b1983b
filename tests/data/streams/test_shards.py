"""Rows of .tar and .jsonl shards are found by an index; what is damaged or ambiguous is refused in a sentence."""

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.streams.stream_toys import decode_tar, make_lines, make_tars, write_tar
from samestep import UserError, stream
from samestep.data.chosen_rows import ReadOptions
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.streams import index
from samestep.data.streams.index import open_index

READING = ReadOptions(seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "samestep" / "shards"


def test_a_row_is_all_members_of_one_key(tmp_path: Path) -> None:
    members = [("a/1.seg.png", b"mask"), ("a/1.txt", b"one"), ("b/1.txt", b""), ("b/._1.txt", b"macOS")]
    members.append(("2.x", b"2"))
    path = write_tar(tmp_path / "x.tar", members)
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("c")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    rows = stream(path)
    assert [rows[n] for n in range(len(rows))] == [
        {"__key__": "a/1", "seg.png": b"mask", "txt": b"one"},
        {"__key__": "b/1", "txt": b""},
        {"__key__": "2", "x": b"2"},
    ]


def test_members_are_those_that_tarfile_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    long = "folder/" + "k" * 150
    members = [(f"{long}{n:03}.bin", random.bytes(int(random.integers(3000)))) for n in range(40)]
    for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{style}.tar"
        with tarfile.open(path, "w", format=style) as tar:
            for name, content in members:
                file = tmp_path / "content"
                file.write_bytes(content)
                tar.add(file, name)
        rows = stream(path)
        with tarfile.open(path) as tar:
            expected = [tar.extractfile(member).read() for member in tar.getmembers()]  # type: ignore[union-attr]
        assert [rows[n]["bin"] for n in range(40)] == expected and rows[7]["__key__"] == f"{long}007"


def test_the_index_is_made_once_and_again_for_another_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(index, "_index_tar", lambda file, make=index._index_tar: (made.append(file), make(file))[1])
    paths = make_tars(tmp_path, [5, 3])
    for _ in range(2):
        rows = stream([str(path) for path in paths], decode=decode_tar)
        assert [rows[n]["x"] for n in range(8)] == list(range(8))
    assert made == paths and len(list(cache.iterdir())) == 2
    assert cache.stat().st_mode & 0o777 == 0o700 and all(file.stat().st_mode & 0o77 == 0 for file in cache.iterdir())
    os.utime(paths[0], ns=(1, 1))
    stream(paths)
    assert made == [*paths, paths[0]]
    for kept in cache.iterdir():
        kept.write_bytes(b"damaged")
    assert len(stream(paths)) == 8 and len(made) == 5


def test_without_a_place_for_indexes_they_are_made_each_time(tmp_path: Path, cache: Path) -> None:
    path = make_tars(tmp_path, [4])[0]
    cache.mkdir(parents=True)
    os.chmod(cache.parent, 0o777)
    assert open_index(path).rows == 4 and not list(cache.iterdir())


def cut(path: Path, size: int) -> Path:
    os.truncate(path, size)
    return path


def joined(folder: Path) -> Path:
    one, other = make_tars(folder, [2, 2])
    one.write_bytes(one.read_bytes() + other.read_bytes())
    return one


def sparse(folder: Path) -> Path:
    path = folder / "s.tar"
    with open(folder / "holes.bin", "wb") as file:
        file.truncate(1 << 22)
    os.system(f"tar --sparse -C {folder} -cf {path} holes.bin")
    return path


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda f: cut(make_tars(f, [4])[0], 700), "part-000.tar is damaged|is cut short"),
        (lambda f: cut(make_tars(f, [4])[0], 1400), "is cut short: its end is missing"),
        (lambda f: cut(make_tars(f, [4])[0], 1536), "is cut short inside 000000.json"),
        (lambda f: cut(make_tars(f, [4])[0], 8 * 1024), "is cut short: its end is missing"),
        (lambda f: cut(make_tars(f, [4])[0], 0), "is damaged"),
        (lambda f: write_tar(f / "x.tar", [("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")]), "two samples with the key a"),
        (lambda f: write_tar(f / "x.tar", [("a.x", b"1"), ("a.x", b"2")]), "has a.x twice in one sample"),
        (lambda f: write_tar(f / "x.tar", [("README", b"1")]), "README in the shard .* has no extension; name members"),
        (lambda f: write_tar(f / "x.tar", []), "the shards have no rows"),
        (joined, "goes on behind its end, as where two were joined by cat"),
        (sparse, "is a sparse file"),
        (lambda f: f / "none.tar", "none.tar does not exist"),
        (lambda f: f / "*.tar", "no file matches"),
        (lambda f: f, 'is a folder; name the shards in it, such as ".*/\\*.tar"'),
        (lambda f: [], "was given no shards"),
        (lambda f: make_tars(f, [2]) * 2, "is named twice"),
        (lambda f: write_tar(f / "x.tar.gz", []), "is no shard: .* unpack it first"),
        (lambda f: write_tar(f / "x.zip", []), "is no shard: samestep.stream reads .tar and .jsonl$"),
    ],
)
def test_shards_that_cannot_be_read(make: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        stream(make(tmp_path))


def test_lines_without_json(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"x": 1}\n\n   \r\n{"x": "\xc3\xa9"}\r\n{"x"\n{"x": 3}')
    rows = stream(path)
    assert [rows[n] for n in (0, 1, 3)] == [{"x": 1}, {"x": "é"}, {"x": 3}] and len(rows) == 4
    with pytest.raises(UserError, match=r"record 3 of .*x.jsonl is not JSON: "):
        rows[2]


@pytest.mark.parametrize("make", [make_tars, make_lines])
def test_a_shard_that_has_changed_is_found(make: Any, tmp_path: Path) -> None:
    decode = decode_tar if make is make_tars else None
    paths = make(tmp_path, [5, 3])
    known = take_fingerprint(stream(paths, decode=decode), READING)
    assert [file["name"] for file in known["files"]] == [path.name for path in paths] + ["an array in memory"]
    assert not compare_fingerprint(known, stream(paths, decode=decode), READING).difference
    os.utime(paths[1], ns=(1, 1))
    assert not compare_fingerprint(known, stream(paths, decode=decode), READING).difference, "the same again"
    content = paths[1].read_bytes()
    place = content.index(b"5", 512 if decode else 0)
    paths[1].write_bytes(content[:place] + b"6" + content[place + 1 :])
    changed = compare_fingerprint(known, stream(paths), READING).difference
    assert "has changed" in changed
    make_more = make(tmp_path, [5, 4])
    assert "8" in compare_fingerprint(known, stream(make_more), READING).difference


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    rows = stream(make_tars(tmp_path, [1] * 150), decode=decode_tar)
    before = len(os.listdir("/proc/self/fd"))
    assert [rows[n]["x"] for n in range(150)] == list(range(150))
    assert len(os.listdir("/proc/self/fd")) - before <= 64


def test_options_that_have_no_effect(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave out rows"):
        stream(make_tars(tmp_path, [3]), rows=3)
    with pytest.raises(UserError, match="buffer=0"):
        stream(make_tars(tmp_path, [3]), buffer=0)
