"""Every recipe takes its models from the Hub by name: once from the network, and then from the cache."""

import shutil
from pathlib import Path

import pytest

import samestep
from hub_server import COMMIT, serving, use
from llada_folder import llada_folder
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(600)
LLADA = f"org/llada@{COMMIT}"
SMALL = ["distributed.dtype=float32", "log.quiet=true", "log.tensorboard=false"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_llada_of_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Data, training, sampling, evaluation and export by one name; its code is neither fetched nor run."""
    files = files_of(llada_folder(home / "llada", home / "ran"))
    shutil.rmtree(home / "llada")
    (home / "text.txt").write_text("\n\n".join(f"{n} and {n} are {2 * n}." for n in range(200)))
    prepare = ["data", "prepare", "text.txt", "--tokenizer", LLADA, "--sequence_length", "16", "--out"]
    train = ["train", "mdlm", "--preset=verify", *SMALL, "--samples_at_end=0", f"--model_name={LLADA}"]
    train += ["--data_dir=data", "--data.limit=null", "--max_steps=2", "--name"]
    with serving({"org/llada": files}) as hub:
        use(hub.url, home / "cache", monkeypatch)
        assert main([*prepare, "data"]) == 0
        assert "--preset llada-8b --model_name " + LLADA in capsys.readouterr().out
        assert hub.fetched() == ["config.json", "tokenizer.json", "tokenizer_config.json"], "and no weights"
        assert main([*train, "a"]) == 0
        assert hub.fetched().count("model.safetensors") == 1
        assert not any(name.endswith(".py") for name in hub.fetched())
    # the hub is gone
    assert main([*train, "b"]) == 0
    assert main(["sample", LLADA, "--prompt", "1 and", "--max_new_tokens", "4"]) == 0
    assert main(["sample", LLADA, "--chat", "--prompt", "1 and", "--max_new_tokens", "4"]) == 0
    assert main([*prepare, "again"]) == 0
    assert main(["export", LLADA, "copy"]) == 0
    assert main(["export", "b", "trained"]) == 0
    assert samestep.load(LLADA).network is not None
    assert not (home / "ran").exists()
