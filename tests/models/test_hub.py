"""Models of the Hub, from a server on loopback: downloaded once, found again without a request; failures."""

import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hub_server import COMMIT, CONFIG, TOKENIZER, HubServer, constants_of, serving, use
from samestep.core.errors import RunFailed, UserError
from samestep.models.hub import resolve_model
from samestep.models.hub_download import find_in_cache, is_complete, weight_files
from samestep.world.world import World
from toys import run_on_ranks

huggingface_hub = pytest.importorskip("huggingface_hub")
for part in ("constants", "file_download", "utils._http"):
    importlib.import_module(f"huggingface_hub.{part}")
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode()
WANTED = {
    "config.json": CONFIG,
    "tokenizer.json": TOKENIZER,
    "merges.txt": b"a b\n",
    "chat_template.jinja": b"{{ x }}",
    "model.safetensors.index.json": INDEX,
    FIRST: b"1" * 300_000,
    SECOND: b"2" * 200_000,
}
UNWANTED = {
    "README.md": b"text",
    "modeling_toy.py": b"raise SystemExit",
    "consolidated.safetensors": b"12" * 1000,
    "pytorch_model.bin": b"pickle",
    "model.gguf": b"gguf",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
}
PLAIN = {"config.json": CONFIG, "tokenizer.json": TOKENIZER, "model.safetensors": b"w" * 1000}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serving({"org/large": {**WANTED, **UNWANTED}, "org/plain": PLAIN}) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        yield server


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits between its attempts."""
    for module in (huggingface_hub.file_download, huggingface_hub.utils._http):
        monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_model("org/name") == Path("org/name")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["gpt2", "./org/name", "/no/such/folder", "a/b/c", "org/name@", ""])
def test_what_is_neither_is_refused_without_a_request(name: str, hub: HubServer) -> None:
    with pytest.raises(UserError, match="org/name or org/name@revision"):
        resolve_model(name)
    assert not hub.requests


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UserError, match="is a file"):
        resolve_model(str(tmp_path / "model.gguf"))


def test_only_what_is_needed_is_downloaded_and_only_once(hub: HubServer) -> None:
    seen: list[tuple[int, int]] = []
    folder = resolve_model("org/large", progress=lambda done, wanted: seen.append((done, wanted)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == WANTED
    assert hub.fetched() == sorted(WANTED)
    assert seen[-1] == (sum(map(len, WANTED.values())),) * 2
    hub.requests.clear()
    for name in ("org/large", "org/large@main", f"org/large@{COMMIT}"):
        assert resolve_model(name) == folder
    assert hub.requests == []


def test_a_commit_is_found_again(hub: HubServer) -> None:
    folder = resolve_model(f"org/plain@{COMMIT}")
    assert folder.name == COMMIT
    hub.requests.clear()
    assert resolve_model(f"org/plain@{COMMIT}") == folder
    assert hub.requests == []


def test_the_modules_of_a_sentence_encoder_are_fetched_too(hub: HubServer) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    modules = {
        "modules.json": json.dumps(listed).encode(),
        "1_Pooling/config.json": b"{}",
        "2_Dense/config.json": b"{}",
        "2_Dense/model.safetensors": b"d" * 10,
    }
    others = {"2_Dense/pytorch_model.bin": b"pickle", "onnx/model.safetensors": b"o", "openvino/config.json": b"{}"}
    hub.models["org/sentences"] = {**PLAIN, **modules, **others}
    folder = resolve_model("org/sentences")
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == PLAIN | modules
    (folder / "2_Dense" / "model.safetensors").unlink()
    assert resolve_model("org/sentences") == folder
    assert (folder / "2_Dense" / "model.safetensors").is_file(), "what is lost is noticed"
    hub.requests.clear()
    assert resolve_model("org/sentences") == folder
    assert hub.requests == []


def test_what_others_downloaded_is_used(hub: HubServer) -> None:
    for name in PLAIN:
        huggingface_hub.hf_hub_download("org/plain", name)
    hub.requests.clear()
    assert resolve_model("org/plain").name == COMMIT
    assert hub.requests == []


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", SECOND, "model.safetensors.index.json"])
def test_what_is_lost_is_fetched_again(lost: str, hub: HubServer) -> None:
    folder = resolve_model("org/large")
    link = folder / lost
    link.resolve().unlink()
    link.unlink()
    hub.requests.clear()
    assert resolve_model("org/large") == folder
    assert hub.fetched() == [lost]


def test_a_broken_connection_is_one_sentence_and_complete_files_are_kept(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_pauses(monkeypatch)
    hub.break_after[SECOND] = 70_000
    hub.break_after[FIRST] = 300_000
    with pytest.raises(RunFailed, match=r"^the connection to http://\S+ broke while org/large was downloaded \(\w+\);"):
        resolve_model("org/large", progress=lambda done, wanted: None)
    assert "Traceback" not in capfd.readouterr().err
    hub.break_after.clear()
    hub.requests.clear()
    folder = resolve_model("org/large")
    assert hub.fetched() == [SECOND] and (folder / SECOND).read_bytes() == WANTED[SECOND]


def test_a_connection_that_breaks_once_is_continued(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.break_after[SECOND] = 70_000
    monkeypatch.setattr(
        huggingface_hub.file_download,
        "time",
        SimpleNamespace(**{**vars(time), "sleep": lambda seconds: hub.break_after.clear()}),
    )
    seen: list[int] = []
    folder = resolve_model("org/large", progress=lambda done, wanted: seen.append(done))
    assert (folder / SECOND).read_bytes() == WANTED[SECOND]
    assert hub.fetched().count(SECOND) == 2
    assert max(seen) == sum(map(len, WANTED.values()))


def test_a_server_that_is_gone_in_the_middle(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    hub.break_after[FIRST], hub.dies = 70_000, True
    with pytest.raises(RunFailed, match="broke while org/large was downloaded"):
        resolve_model("org/large", progress=lambda done, wanted: None)
    assert find_in_cache("org/large", "main") is None, "what is not complete is not taken for it"


def test_no_server_at_all(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    hub.stop()
    with pytest.raises(
        UserError,
        match=r"Connect to a network, or name a folder; org/plain is not complete in .*, no folder from /.*reach",
    ):
        resolve_model("org/plain")


REFUSALS = {
    "gated": ("resolve", 403, {"X-Error-Code": "GatedRepo"}, UserError, r"Ask for access at http://\S+/org/plain, and"),
    "forbidden": ("resolve", 403, {}, UserError, "Ask for access"),
    "gated listing": ("api", 401, {"X-Error-Code": "GatedRepo"}, UserError, "Ask for access"),
    "private": ("api", 401, {}, UserError, "Check the name, or log in"),
    "private file": ("resolve", 401, {}, UserError, "Check the name, or log in"),
    "down": ("api", 503, {}, RunFailed, "answered with 503; try again later"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    part, status, headers, kind, sentence = REFUSALS[case]
    hub.refuse[part] = (status, headers)
    with pytest.raises(kind, match=sentence) as caught:
        resolve_model("org/plain", progress=lambda done, wanted: None)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None


def test_unknown_names_and_revisions(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"no folder org/other \(from {tmp_path}\), and no model org/other"):
        resolve_model("org/other")
    with pytest.raises(UserError, match="Name another revision; org/plain has no v9 at"):
        resolve_model("org/plain@v9")
    with pytest.raises(UserError, match="Name an existing folder"):
        resolve_model("org/double--dash")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"config.json": None}, "has no config.json"),
        ({"model.safetensors": None}, "has neither safetensors nor PyTorch weights"),
        ({"model.safetensors": None, "model.safetensors.index.json": INDEX}, "lacks files that its index"),
        ({"model.safetensors": None, "model.safetensors.index.json": b"{}"}, "is no index"),
    ],
)
def test_models_that_cannot_be_used(change: dict[str, bytes | None], sentence: str, hub: HubServer) -> None:
    hub.models["org/odd"] = {name: data for name, data in {**PLAIN, **change}.items() if data is not None}
    with pytest.raises(UserError, match=sentence):
        resolve_model("org/odd", progress=lambda done, wanted: None)


def fail_to_download(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    look = huggingface_hub.snapshot_download

    def download(*args: Any, local_files_only: bool = False, **options: Any) -> str:
        if not local_files_only:
            raise error
        return look(*args, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_a_full_disk(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
        with pytest.raises(UserError, match=r"set HF_HOME to a folder on a larger disk; org/plain needs 0.0 GB more"):
            resolve_model("org/plain", progress=lambda done, wanted: None)

    fail_to_download(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(UserError, match=r"set HF_HOME to a folder on a larger disk; .*cache is full"):
        resolve_model("org/plain", progress=lambda done, wanted: None)


def test_a_cache_that_cannot_be_written(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"Set HF_HOME to a folder that you can write to; .*\(Not a directory\)"):
        resolve_model("org/plain", progress=lambda done, wanted: None)


def test_a_bug_is_no_sentence(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_download(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        resolve_model("org/plain", progress=lambda done, wanted: None)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[hf\]"'):
        resolve_model("org/plain")


def test_rank_0_shows_a_line_where_there_is_no_terminal(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    hub.models["org/large"][FIRST] = b"1" * 3_000_000
    resolve_model("org/large")
    assert capsys.readouterr().err.strip() == "downloading org/large (3 MB)"


def test_weight_files(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(INDEX)
    assert weight_files([index.name, "consolidated.safetensors"], tmp_path) == [FIRST, SECOND]
    assert weight_files(["model.safetensors", index.name, "pytorch_model.bin"], tmp_path) == ["model.safetensors"]
    assert weight_files(["adapter_model.safetensors", "pytorch_model.bin"], tmp_path) == ["adapter_model.safetensors"]
    assert weight_files(["pytorch_model.bin", "training_args.bin", "model.gguf"], tmp_path) == ["pytorch_model.bin"]
    assert weight_files(["model.gguf", "model.onnx", "training_args.bin"], tmp_path) == []


def test_complete(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name, data in PLAIN.items():
        assert not is_complete(folder)
        (folder / name).write_bytes(data)
    assert is_complete(folder)


def test_nothing_but_the_client_writes_into_the_cache(hub: HubServer) -> None:
    folder = resolve_model("org/plain")
    assert {path.name for path in folder.parents[1].iterdir()} <= {"blobs", "refs", "snapshots", "trees", ".no_exist"}


def test_a_model_without_a_tokenizer(hub: HubServer) -> None:
    hub.models["org/vision"] = {name: data for name, data in PLAIN.items() if name != "tokenizer.json"}
    folder = resolve_model("org/vision")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    hub.requests.clear()
    assert resolve_model("org/vision") == folder
    assert hub.fetched() == []


def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError, match=r"^Unset HF_HUB_OFFLINE, or name a folder; org/plain is not complete in"):
            resolve_model("org/plain")
    assert not hub.requests
    folder = resolve_model("org/plain")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("org/plain") == folder


def test_the_environment_is_respected(tmp_path: Path) -> None:
    code = "from samestep.models.hub_download import Download, HubModel; print(Download(HubModel('org/plain'))())"
    with serving({"org/plain": PLAIN}) as server:
        env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path / "own"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == COMMIT
    assert server.fetched() == sorted(PLAIN)
    assert is_complete(tmp_path / "own" / "models--org--plain" / "snapshots" / COMMIT)


def on_two_ranks(url: str, cache: str, each: bool, fails: str) -> None:
    """Resolve on every rank, with a cache for all or one for each."""
    from huggingface_hub import constants

    world = World.join(device="cpu", timeout=30)
    for name, value in constants_of(url, f"{cache}{world.rank}" if each else cache).items():
        setattr(constants, name, value)
    if each:  # ranks with caches of their own are on hosts of their own
        World.host = f"host{world.rank}"  # type: ignore[assignment, method-assign]
    try:
        folder = resolve_model("org/large", world)
    except (UserError, RunFailed) as error:
        sentences = world.gather(f"{type(error).__name__}: {error}")
        assert len(set(sentences)) == 1 and fails and fails in sentences[0], sentences
    else:
        assert not fails
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == WANTED
        assert len(set(world.gather(folder.name))) == 1
    world.leave()


@pytest.mark.timeout(900)
def test_two_ranks_download_once(tmp_path: Path) -> None:
    with serving({"org/large": {**WANTED, **UNWANTED}}) as server:
        for again in (False, True):
            output = run_on_ranks(on_two_ranks, 2, server.url, f"{tmp_path}/cache", False, "", logs=tmp_path / "logs")
            assert output.count("downloading org/large") <= 1
            assert server.fetched() == ([] if again else sorted(WANTED))
            assert not (again and server.requests), "the second time from the cache"
            server.requests.clear()


@pytest.mark.timeout(900)
def test_hosts_with_caches_of_their_own_download_each(tmp_path: Path) -> None:
    with serving({"org/large": {**WANTED, **UNWANTED}}) as server:
        run_on_ranks(on_two_ranks, 2, server.url, f"{tmp_path}/cache", True, "", logs=tmp_path / "logs")
        assert server.fetched() == sorted([*WANTED, *WANTED])


@pytest.mark.timeout(900)
def test_two_ranks_fail_with_one_sentence(tmp_path: Path) -> None:
    with serving({"org/plain": PLAIN}) as server:
        said = "UserError: Check the name, or log in"
        run_on_ranks(on_two_ranks, 2, server.url, f"{tmp_path}/cache", False, said, logs=tmp_path / "logs")
