"""Reading local text: the tokens, the memory it takes, and how mistakes are refused."""

import hashlib
import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from samestep.core.errors import UserError
from samestep.data.text import TokenFile, TokenFiles, fingerprint, open_text, split

EOS = 300


def opened(path: Path, field: str = "text", cache: Path | None = None) -> TokenFile:
    return open_text(str(path), field=field, separator=EOS, cache=cache or path.parent / "cache")


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_a_plain_file_is_its_bytes_whatever_they_are(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    (tmp_path / "a.txt").write_bytes(content)
    tokens = opened(tmp_path / "a.txt")
    assert len(tokens) == len(content)
    assert tokens[:].tobytes() == content
    assert tokens[np.array([[0, 255], [256, 1]])].tolist() == [[0, 255], [0, 1]]
    assert fingerprint(tokens) == hashlib.sha256(content).hexdigest()


def test_split_is_contiguous_and_complete() -> None:
    tokens = np.arange(101, dtype=np.uint8)
    train, validation = split(tokens, 0.1)
    assert len(validation) == 10
    assert np.concatenate([train[:], validation[:]]).tolist() == tokens.tolist()


def test_split_of_a_file_is_that_of_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(101)))
    train, validation = split(opened(tmp_path / "a.txt"), 0.25)
    assert train[:].tolist() == list(range(len(train)))
    assert validation[:].tolist() == list(range(len(train), 101))
    assert fingerprint(validation) == hashlib.sha256(bytes(range(len(train), 101))).hexdigest()


def test_jsonl_documents_are_joined_by_the_separator(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab"}, {"text": "", "id": 1}, {"text": "é"}, {"text": "c"})
    path.write_text(path.read_text() + "\n\n")
    assert opened(path)[:].tolist() == [97, 98, EOS, *"é".encode(), EOS, 99]


def test_an_unpacked_file_is_kept_and_made_again_when_its_source_changes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab", "body": "xy"})
    first = opened(path)
    assert opened(path).file == first.file
    assert opened(path, field="body")[:].tolist() == [120, 121]
    write_lines(path, {"text": "abc"})
    assert opened(path)[:].tolist() == [97, 98, 99]
    assert not list((tmp_path / "cache").glob("*.part"))


def test_the_usual_cache_is_a_private_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab"})
    tokens = open_text(str(path), field="text", separator=EOS)
    assert tokens.file.parent.parent == tmp_path.resolve()
    assert tokens.file.parent.stat().st_mode & 0o077 == 0


def peak_of_using(path: Path) -> int:
    tracemalloc.start()
    train, validation = split(opened(path), 0.1)
    for tokens in (train, validation):
        tokens[np.arange(0, len(tokens), len(tokens) // 100)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for name, size in (("small.txt", 1_000_000), ("large.txt", 600_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)  # sparse: takes no room on disk
        peaks.append(peak_of_using(tmp_path / name))
    assert peaks[1] < 1_000_000
    assert peaks[1] < peaks[0] + 100_000


def test_anonymous_memory_does_not_grow_with_a_file_that_is_used_by_several_regions(tmp_path: Path) -> None:
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(600_000_000)
    before = _anonymous_bytes()
    regions = split(opened(tmp_path / "large.txt"), 0.5)
    assert len(pickle.dumps(regions)) < 2_000, "worker processes must be sent the name, not the text"
    copies = [pickle.loads(pickle.dumps(region)) for region in regions]
    assert copies[1][:3].tolist() == [0, 0, 0]
    assert len(copies[1]) == 300_000_000
    assert _anonymous_bytes() - before < 50_000_000


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    pytest.skip("this system does not show the memory of a process")


def test_unpacking_jsonl_takes_the_memory_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"text": "x" * 10_000}) + "\n"
    path.write_text(line * 1_000)
    tracemalloc.start()
    tokens = opened(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(tokens) == 1_000 * 10_001 - 1
    assert peak < 1_000_000


BAD_FILES = {
    "missing": (None, "a.txt", "does not exist"),
    "empty": (b"", "a.txt", "is empty"),
    "packed": (b"PK", "a.txt.gz", "Unpack"),
    "not json": (b'{"text": "a"}\n{"text": \n', "a.jsonl", "line 2 of .*not JSON"),
    "no field": (b'{"body": "a", "id": 1}\n', "a.jsonl", "one of body, id; line 1 of .* has no field 'text'"),
    "not a string": (b'{"text": 5}\n', "a.jsonl", "a string on line 1 .* it is 5"),
    "not an object": (b'["a"]\n', "a.jsonl", "line 1 of .* a JSON object"),
    "not utf-8": (b'{"text": "a"}\n\n{"text": "\xff"}\n', "a.jsonl", "UTF-8; line 3"),
    "half a pair": (b'{"text": "\\ud800"}\n', "a.jsonl", "line 1 of .*surrogate"),
    "no text at all": (b'{"text": ""}\n\n', "a.jsonl", "empty on every line"),
}


@pytest.mark.parametrize(("content", "name", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused(tmp_path: Path, content: bytes | None, name: str, sentence: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refusal:
        opened(tmp_path / name)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.glob("cache/*")), "a refused file leaves nothing behind"


def test_a_folder_is_refused_with_the_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("a")
    with pytest.raises(UserError, match=r"such as novel\.txt"):
        opened(tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(UserError, match="Allow this user to read"):
        opened(tmp_path / "a.txt")


def test_a_chat_is_refused_with_the_command_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="read chats with samestep data prepare"):
        opened(write_lines(tmp_path / "a.jsonl", {"messages": []}))


def test_tokens_over_several_files_read_as_one_sequence(tmp_path: Path) -> None:
    content = bytes(range(100))
    files = []
    for number, (start, stop) in enumerate([(0, 10), (10, 11), (11, 60), (60, 100)]):
        (tmp_path / f"{number}.bin").write_bytes(content[start:stop])
        files.append(TokenFile(tmp_path / f"{number}.bin", "u1", 0, stop - start))
    run = TokenFiles(files)
    assert len(run) == 100
    assert run[:].tobytes() == content
    for start in range(0, 100, 7):
        for stop in range(start, 101, 9):
            assert run[start:stop].tobytes() == content[start:stop]
            assert run.span(start, stop)[:].tobytes() == content[start:stop]
    where = np.array([[99, 0, 10], [11, 59, 60]])
    assert run[where].tolist() == where.tolist()
    train, validation = split(run, 0.35)
    assert fingerprint(validation) == hashlib.sha256(content[65:]).hexdigest()
    assert len(train) == 65
