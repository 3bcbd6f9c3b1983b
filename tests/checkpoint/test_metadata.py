"""A checkpoint from somebody else cannot run code here, though part of it is a pickle."""

import builtins
import copyreg
import io
import os
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_parts import Part
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata, Metadata

from samestep.checkpoint.files import write_file
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import read_manifest, verify, write_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.store import Store
from samestep.core.errors import UserError
from samestep.world.world import World


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Store(tmp_path / "store", World.single()).save(1, {"model": Part({"w": torch.ones(3)})}, {})


class Planted:
    """Calls a function when it is unpickled."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


def plant(path: Path, name: str, data: bytes) -> None:
    """Put a file into a checkpoint with all checksums right, as an attacker would."""
    manifest = read_manifest(path)
    record = write_file(path / name, data)
    write_manifest(path, replace(manifest, files={**manifest.files, name: record}))
    assert verify(path) is None


def load(path: Path) -> None:
    store = Store(path.parent, World.single())
    checkpoint = store.newest()
    assert checkpoint is not None
    store.load(checkpoint, {"model": Part({"w": torch.zeros(3)})})


def payloads(marker: Path) -> dict[str, bytes]:
    command = f"touch {marker}"
    text = f"__import__('os').system({command!r})"
    return {
        "posix.system": pickle.dumps(Planted(os.system, command)),
        "builtins.eval": pickle.dumps(Planted(builtins.eval, text)),
        "builtins.exec": pickle.dumps([{"deep": Planted(builtins.exec, text)}]),
        "torch.serialization.load": pickle.dumps(Planted(torch.load, str(marker))),
        "torch.os.system": b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93" + pickle.dumps(command)[2:-1] + b"\x85R.",
        "torch.serialization.os.system": b"ctorch.serialization\nos.system\n(S'" + command.encode() + b"'\ntR.",
    }


@pytest.mark.parametrize("name", sorted(payloads(Path("x"))))
def test_a_planted_call_is_refused_by_name_and_not_made(path: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    plant(path, ".metadata", payloads(marker)[name])
    for read in (lambda: load(path), lambda: read_tensors(path, "model")):
        with pytest.raises(UserError, match=rf"names {name}, which samestep never writes.*a checkpoint you can trust"):
            read()
    assert not marker.exists()


def test_the_planted_calls_would_have_run(tmp_path: Path) -> None:
    for name in ("posix.system", "builtins.eval", "builtins.exec"):
        marker = tmp_path / name
        pickle.loads(payloads(marker)[name])
        assert marker.exists(), "otherwise the test above proves nothing"


class Chained:
    """Looks up one attribute after the other when it is unpickled, as Python 3.11.2 does for a member of an enum."""

    def __init__(self, start: object, *names: str) -> None:
        self.start, self.names = start, names

    def __reduce__(self) -> tuple:
        *before, last = self.names
        return getattr, (Chained(self.start, *before) if before else self.start, last)


def test_metadata_that_pickles_enums_by_getattr_is_read(path: Path) -> None:
    data = io.BytesIO()
    pickler = pickle.Pickler(data)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        _MEM_FORMAT_ENCODING: lambda member: (getattr, (type(member), member.name)),
    }
    pickler.dump(pickle.loads((path / ".metadata").read_bytes()))
    assert b"getattr" in data.getvalue()
    plant(path, ".metadata", data.getvalue())
    load(path)


HOSTILE = {
    "of a text": Chained("", "format"),
    "of a class": Chained(Metadata, "__init__"),
    "an enum's class": Chained(_MEM_FORMAT_ENCODING, "__class__"),
    "an enum's method": Chained(_MEM_FORMAT_ENCODING, "mro"),
    "of a member": Chained(_MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT, "__reduce_ex__"),
    "a chain to the globals": Chained(Metadata, "__init__", "__globals__"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_getattr_returns_nothing_else(path: Path, how: str) -> None:
    plant(path, ".metadata", pickle.dumps([HOSTILE[how]]))
    with pytest.raises(UserError, match=r"names builtins\.getattr, which samestep never writes"):
        load(path)


def test_a_planted_call_among_the_tensors_is_refused(path: Path, tmp_path: Path) -> None:
    data = io.BytesIO()
    torch.save(Planted(os.mkdir, str(tmp_path / "ran")), data)
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for stored in metadata.storage_data.values():
        stored.offset, stored.length = 0, len(data.getvalue())
    plant(path, ".metadata", pickle.dumps(metadata))
    plant(path, "__0_0.distcp", data.getvalue())
    for read in (lambda: load(path), lambda: read_tensors(path, "model")):
        with pytest.raises(UserError, match="would run code when read, so they were not"):
            read()
    assert not (tmp_path / "ran").exists()


def test_metadata_may_not_point_outside_of_the_checkpoint(path: Path) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for stored in metadata.storage_data.values():
        stored.relative_path = "../elsewhere.distcp"
    plant(path, ".metadata", pickle.dumps(metadata))
    with pytest.raises(UserError, match=r"looks for 'model/w' outside of the checkpoint"):
        load(path)


def test_metadata_may_describe_tensors_only(path: Path) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.state_dict_metadata["model/w"] = BytesStorageMetadata()
    plant(path, ".metadata", pickle.dumps(metadata))
    with pytest.raises(UserError, match="BytesStorageMetadata"):
        load(path)


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps([1, 2]), pickle.dumps(torch.Size([1]))])
def test_nonsense_is_refused_in_a_sentence(path: Path, data: bytes) -> None:
    plant(path, ".metadata", data)
    with pytest.raises(UserError, match=r"\.metadata .*which samestep never writes"):
        load(path)


# Any bytes at all.

PICKLES = [
    b"\x80\x02}K\x01h\x05s.",
    b"\x80\x02K\x01\x93.",
    b"ctorch\nSize\n(S'x'\ntR.",
    b"\x80\x04\x96" + b"\xff" * 7 + b"\x7f.",
]
WILD = st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.just(10**18), st.builds(list), st.just(torch.Size([2**40, 2**20]))
)


def refused_or_read(path: Path) -> None:
    """Nothing but a sentence comes out, unless the tensors do."""
    said, tensors = "", {}
    try:
        tensors = read_tensors(path, "model")
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert all(tensor.numel() < 1000 for tensor in tensors.values())


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.sampled_from(PICKLES)), st.booleans())
def test_any_bytes_are_refused_in_a_sentence(path: Path, data: bytes, own: bool) -> None:
    (path / ".metadata").write_bytes(data)
    with pytest.raises(UserError, match="which samestep never writes"):
        read_metadata(path, read_manifest(path).files, own=own)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".metadata", "__0_0.distcp"]), st.data())
def test_any_change_of_a_file_is_refused_in_a_sentence_or_harmless(path: Path, name: str, data: st.DataObject) -> None:
    """With all checksums right, as an attacker would have them."""
    before = (path / name).read_bytes()
    start = data.draw(st.integers(0, len(before)))
    end = data.draw(st.integers(start, min(len(before), start + 8)))
    plant(path, name, before[:start] + data.draw(st.binary(max_size=8)) + before[end:])
    try:
        refused_or_read(path)
    finally:
        plant(path, name, before)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["metadata", "entry", "properties", "chunk", "index", "stored"]), WILD, st.data())
def test_any_value_in_the_metadata_is_refused_in_a_sentence_or_harmless(
    path: Path, part: str, value: object, data: st.DataObject
) -> None:
    before = (path / ".metadata").read_bytes()
    metadata = pickle.loads(before)
    (entry,), ((index, stored),) = metadata.state_dict_metadata.values(), metadata.storage_data.items()
    parts = {"metadata": metadata, "entry": entry, "properties": entry.properties}
    owner = {**parts, "chunk": entry.chunks[0], "index": index, "stored": stored}[part]
    field = data.draw(st.sampled_from(sorted(vars(owner).keys() - {"memory_format"})))
    owner.__dict__[field] = value
    if data.draw(st.booleans()):
        entry.__dict__.pop("chunks", None)
    plant(path, ".metadata", pickle.dumps(metadata))
    try:
        refused_or_read(path)
    finally:
        plant(path, ".metadata", before)


def test_a_few_bytes_cannot_take_all_memory(path: Path) -> None:
    data = (
        b"\x80\x02K\x01r\x00\x00\x00\x04."  # "keep this as number 2**26": the fast unpickler makes room for all before
    )
    (path / ".metadata").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="does not describe tensors"):
            read_metadata(path, read_manifest(path).files)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_tensor_cannot_be_larger_than_the_checkpoint(path: Path) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.state_dict_metadata["model/w"].size = torch.Size([2**40])
    plant(path, ".metadata", pickle.dumps(metadata))
    with pytest.raises(UserError, match="describes 'model/w' as larger than the checkpoint"):
        load(path)
