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
from samestep.data.records.reading import Records
from samestep.data.text import TokenFile, TokenFiles, fingerprint, open_documents, open_text, split

EOS = 300


def opened(path: Path) -> TokenFile:
    return open_text(str(path))


def unpacked(path: Path, column: str = "text", fraction: float = 0.01) -> list[TokenFile]:
    """Few documents are split by position, and such a fraction of a short text is nothing."""
    records = Records(str(path), {"text": column} if column != "text" else None)
    cache = path.parent / "cache"
    return open_documents(records, separator=EOS, validation_fraction=fraction, skip_invalid=False, cache=cache)[0][:2]


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
    train, validation, _ = split(tokens, 0.1)
    assert len(validation) == 10
    assert np.concatenate([train[:], validation[:]]).tolist() == tokens.tolist()


def test_split_of_a_file_is_that_of_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(101)))
    train, validation, _ = split(opened(tmp_path / "a.txt"), 0.25)
    assert train[:].tolist() == list(range(len(train)))
    assert validation[:].tolist() == list(range(len(train), 101))
    assert fingerprint(validation) == hashlib.sha256(bytes(range(len(train), 101))).hexdigest()


def test_a_test_part_comes_before_validation_which_stays_the_same() -> None:
    tokens = np.arange(101, dtype=np.uint8)
    train, validation, test = split(tokens, 0.1, 0.2)
    assert np.array_equal(validation, split(tokens, 0.1)[1]) and len(test) == 20
    assert np.concatenate([train[:], test[:], validation[:]]).tolist() == tokens.tolist()


@pytest.mark.parametrize("count", [1, 40])  # one document is cut, many are split by what they say
def test_a_test_part_of_records_leaves_validation_as_it_is(count: int, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"text": f"text {number} is here"} for number in range(count)))
    common = {"separator": EOS, "validation_fraction": 0.2, "skip_invalid": False, "cache": tmp_path / "cache"}
    without, parts = (open_documents(Records(str(path)), test_fraction=share, **common)[0] for share in (0.0, 0.3))
    assert len(without[2]) == 0 and parts[1][:].tolist() == without[1][:].tolist()
    if count == 1:
        assert [*parts[0][:], *parts[2][:]] == without[0][:].tolist()
    else:
        train, _, test = map(bytes_of, parts)
        assert len(test) == 12 and sorted([*train, *test]) == sorted(bytes_of(without[0]))


def test_documents_are_joined_by_the_separator(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab"}, {"text": "", "id": 1}, {"text": "é"}, {"text": "c"})
    path.write_text(path.read_text() + "\n\n")
    assert unpacked(path)[0][:].tolist() == [97, 98, EOS, *"é".encode(), EOS, 99]
    (tmp_path / "a.csv").write_text('id,text\n1,ab\n2,\n3,é\n4,"c"\n')
    assert unpacked(tmp_path / "a.csv")[0][:].tolist() == unpacked(path)[0][:].tolist()


def test_few_documents_are_split_at_their_end(tmp_path: Path) -> None:
    train, validation = unpacked(write_lines(tmp_path / "a.jsonl", {"text": "abcdefghij"}), fraction=0.3)
    assert (train[:].tobytes()[::2], validation[:].tobytes()[::2]) == (b"abcdefg", b"hij")


def test_many_documents_are_split_by_what_they_say(tmp_path: Path) -> None:
    texts = [{"text": f"text {number % 30}"} for number in range(40)]
    parts = [set(bytes_of(part)) for part in unpacked(write_lines(tmp_path / "a.jsonl", *texts), fraction=0.2)]
    other = [set(bytes_of(part)) for part in unpacked(write_lines(tmp_path / "b.jsonl", *texts[::-1]), fraction=0.2)]
    assert parts == other, "the order does not count"
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 30
    assert 4 <= len(parts[1]) <= 8


def bytes_of(tokens: TokenFile) -> list[bytes]:
    """The documents in tokens."""
    found: list[list[int]] = [[]]
    for token in tokens[:].tolist():
        found.append([]) if token == EOS else found[-1].append(token)
    return list(map(bytes, found))


def test_unpacked_files_are_kept_and_made_again_when_their_source_changes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab", "body": "xy"})
    first, _ = unpacked(path)
    assert unpacked(path)[0].file == first.file
    assert unpacked(path, column="body")[0][:].tolist() == [120, 121]
    stamps = path.stat()
    write_lines(path, {"text": "cd", "body": "xy"})
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # of the same size and time
    assert unpacked(path)[0][:].tolist() == [99, 100]
    assert not list((tmp_path / "cache").glob("*.part"))


def test_the_usual_cache_is_a_private_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_lines(tmp_path / "a.jsonl", {"text": "ab"})
    ((tokens, *_),) = open_documents(Records(str(path)), separator=EOS, validation_fraction=0.1, skip_invalid=False)
    assert tokens.file.parent.parent == tmp_path.resolve()
    assert tokens.file.parent.stat().st_mode & 0o077 == 0


def peak_of_using(path: Path) -> int:
    tracemalloc.start()
    train, validation, _ = split(opened(path), 0.1)
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


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_unpacking_records_takes_the_memory_of_a_document(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    texts = [f"{number:05d}" + "x" * 9_995 for number in range(1_000)]
    lines = [json.dumps({"text": text}) for text in texts] if kind == "jsonl" else ["text", *texts]
    path.write_text("\n".join(lines))
    tracemalloc.start()
    parts = unpacked(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(map(len, parts)) == 1_000 * 10_001 - 2
    assert peak < 1_000_000


BAD_FILES = {
    "missing": (None, "a.txt", "does not exist"),
    "empty": (b"", "a.txt", "is empty"),
    "packed": (b"PK", "a.txt.gz", "Unpack"),
    "not json": (b'{"text": "a"}\n{"text": \n', "a.jsonl", "line 2: it is not JSON"),
    "no field": (b'{"body": "a", "id": 1}\n', "a.jsonl", "line 1: 'text' is missing"),
    "not a string": (b'{"text": 5}\n', "a.jsonl", "line 1: 'text' is no text but 5"),
    "not an object": (b'["a"]\n', "a.jsonl", "line 1: it is no JSON object"),
    "not utf-8": (b'{"text": "a"}\n\n{"text": "\xff"}\n', "a.jsonl", "line 3: it is not UTF-8"),
    "half a pair": (b'{"text": "\\ud800"}\n', "a.jsonl", "line 1: 'text' holds half of a surrogate"),
    "no text at all": (b'{"text": ""}\n\n', "a.jsonl", "it is empty in all of"),
}


@pytest.mark.parametrize(("content", "name", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused(tmp_path: Path, content: bytes | None, name: str, sentence: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        unpacked(tmp_path / name) if name.endswith("jsonl") else opened(tmp_path / name)
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
    train, validation, _ = split(run, 0.35)
    assert fingerprint(validation) == hashlib.sha256(content[65:]).hexdigest()
    assert len(train) == 65
