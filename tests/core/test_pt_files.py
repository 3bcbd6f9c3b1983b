"""A `.pt` file may come from anywhere: it is read, or refused in one sentence, and never run."""

import io
import os
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samestep.checkpoint.weight_files import open_weight_file
from samestep.checkpoint.weight_sources import read_all
from samestep.core.errors import UserError
from samestep.core.pt_files import UnreadableFile, read_pt
from samestep.models.folder_weights import find_weights
from samestep.models.protein_mpnn_files import read_protein_mpnn

FUZZ = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMATS = {"zip": True, "older": False}


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """At most 2 GB more than now: what is declared in a file must not be allocated."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pytorch_model.bin"


def saved(path: Path, content: object, kind: str = "zip") -> None:
    torch.save(content, path, _use_new_zipfile_serialization=FORMATS[kind])


def bytes_of(content: object, kind: str) -> bytes:
    data = io.BytesIO()
    torch.save(content, data, _use_new_zipfile_serialization=FORMATS[kind])
    return data.getvalue()


REAL = {kind: bytes_of({"weight": torch.ones(2, 2), "bias": torch.ones(2), "num_edges": 4}, kind) for kind in FORMATS}
"""Made once: the older format has addresses in it."""


def open_everywhere(path: Path) -> list[str]:
    """Every way in which such a file is opened: the sentences of those that refuse it."""
    ways = {
        "weights": lambda: read_all(open_weight_file(path).source),
        "protein": lambda: read_protein_mpnn(path),
        "folder": lambda: find_weights(path.parent, torch.nn.Linear(2, 2)),
    }
    said = []
    for open_one in ways.values():
        try:
            open_one()
        except UserError as error:
            said.append(str(error))
    assert not any("\n" in sentence for sentence in said)
    return said


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(UnreadableFile):
        read_pt(path)
    assert len(open_everywhere(path)) == 3


@FUZZ
@given(st.sampled_from(list(FORMATS)), st.data())
def test_any_change_of_a_real_file(path: Path, kind: str, data: st.DataObject) -> None:
    before = REAL[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(before)))
        end = data.draw(st.integers(start, min(len(before), start + 8)))
        before = before[:start] + data.draw(st.binary(max_size=8)) + before[end:]
    path.write_bytes(before)
    open_everywhere(path)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("function", [os.mkdir, os.makedirs, Path.mkdir])
def test_no_call_is_made(path: Path, tmp_path: Path, kind: str, function: object) -> None:
    marker = tmp_path / "ran"
    saved(path, {"weight": Call(function, marker if function is Path.mkdir else str(marker))}, kind)
    assert len(open_everywhere(path)) == 3
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "otherwise this proves nothing"


def sparse() -> torch.Tensor:
    place = torch.zeros(1, 1, dtype=torch.long)
    return torch.sparse_coo_tensor(place, torch.ones(1), (2**40,), check_invariants=True)


HUGE = {
    "bytes": lambda: Call(bytearray, 2**45),
    "a tensor without values": lambda: torch.empty(2**40, device="meta"),
    "a sparse tensor": sparse,
    "one number that is said to be many": lambda: torch.ones(1).expand(2**40),
}


@pytest.mark.parametrize("what", HUGE)
def test_what_is_no_plain_tensor_is_refused(path: Path, what: str) -> None:
    saved(path, {"weight": HUGE[what](), "bias": torch.ones(2)})
    assert len(open_everywhere(path)) == 3


@pytest.mark.parametrize("what", ["storage of another size", "a storage that is not there"])
def test_sizes_that_are_only_declared(path: Path, tmp_path: Path, what: str) -> None:
    saved(path, {"weight": torch.ones(4)})
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    (record,) = [name for name in parts if name.endswith("data.pkl")]
    if what == "storage of another size":
        parts[record] = parts[record].replace(b"K\x04", b"\x8a\x06\x00\x00\x00\x00\x00\x10")
    else:
        parts = {name: content for name, content in parts.items() if not name.endswith("data/0")}
    assert len(parts) > 2
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    assert len(open_everywhere(path)) == 3


@pytest.mark.parametrize("content", [[1, 2], {"model": 3}, {1: torch.ones(1)}, torch.ones(1), {}, None])
def test_other_content(path: Path, content: object) -> None:
    saved(path, content)
    assert len(open_everywhere(path)) == 3


@pytest.mark.parametrize("compressed", ["data.pkl", "data/0"])
def test_compressed_parts_are_refused(path: Path, tmp_path: Path, compressed: str) -> None:
    """torch would read other values than were saved, or unpack as much as the file says."""
    saved(tmp_path / "plain.pt", {"a": torch.zeros(2)})
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            method = zipfile.ZIP_DEFLATED if name.endswith(compressed) else zipfile.ZIP_STORED
            new.writestr(name, old.read(name), method)
    with pytest.raises(UnreadableFile, match="its parts are compressed"):
        read_pt(path)
    assert len(open_everywhere(path)) == 3
