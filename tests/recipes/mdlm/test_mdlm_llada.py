"""Folders of LLaDA: the code that is in them is carried from training to export, never run, and opens the export."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import samestep
from llada_folder import AUTO_MAP, llada_folder
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.models.carried_code import read_code
from samestep.recipes.mdlm.pretrained import export
from samestep.train.trained.export import ExportOptions
from samestep.train.trained.trained_model import open_trained

pytestmark = pytest.mark.timeout(600)
CODE = ["configuration_llada.py", "modeling_llada.py"]
TOKENS = [[5, 9, 257, 33, 257, 0, 256]]
READER = """
import json, os, sys
sys.modules["samestep"] = None
folder, file, tokens, cache = json.loads(sys.argv[1])
os.environ |= {"HF_HOME": cache, "HF_HUB_OFFLINE": "1"}
import torch
from transformers import AutoModel, AutoTokenizer
model, about = AutoModel.from_pretrained(
    folder, trust_remote_code=True, torch_dtype=torch.float32, output_loading_info=True
)
assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), about
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
ids = torch.tensor(tokens)
with torch.no_grad():
    logits = model.to("cpu").eval()(ids, attention_mask=torch.ones_like(ids)).logits
    model.load_state_dict(torch.load(file, weights_only=True)["model_state_dict"])
    of_file = model(ids).logits
chat = tokenizer.apply_chat_template([{"role": "user", "content": "Why"}], tokenize=False)
print(json.dumps({
    "type": type(model).__name__, "device": str(model.device), "logits": logits.tolist(), "of_file": of_file.tolist(),
    "ids": tokenizer("Why?")["input_ids"], "pad": tokenizer.pad_token_id, "chat": chat,
}))
"""


def settings(name: str, *more: str) -> list[str]:
    plain = ["--preset=verify", "--distributed.dtype=float32", "--no-log.tensorboard", "--log.samples=0"]
    return ["train", "mdlm", *plain, "--data_dir=data", "--data.limit=null", "--name", name, *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `llada` and the run `a` that began with it, stopped and resumed; nobody ran the code."""
    home = tmp_path_factory.mktemp("llada")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        llada_folder(home / "llada", home / "ran")
        (home / "text.txt").write_text("\n\n".join(f"{n} and {n} are {2 * n}." for n in range(200)))
        prepared = ["--tokenizer", "llada", "--sequence_length", "16", "--out", "data"]
        assert main(["data", "prepare", "text.txt", *prepared]) == 0
        run = settings("a", "--model_name=llada", "--epochs=1", "--max_steps=null", "--pt_checkpoints")
        assert main(run) == 0
        assert main(["train", "--resume", "runs/a", "--extend", "--epochs=2"]) == 0
    assert not (home / "ran").exists()
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, as the working directory."""
    shutil.copytree(trained, tmp_path / "home")
    record = next((tmp_path / "home").glob("runs/a/artifacts/*/code.json"))
    record.write_text(record.read_text().replace(str(trained), str(tmp_path / "home")))
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def exported(source: str, folder: str = "out", **options: Any) -> list[str]:
    return export(open_trained(source), Path(folder), ExportOptions(**options))


def python_files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).rglob("*.py"))


def test_transformers_opens_the_export_with_its_own_code(trained: Path, home: Path) -> None:
    assert main(["sample", "a", "--prompt", "1 and", "--max_new_tokens", "4"]) == 0
    assert main(["export", "a", "out", "--license", "mit"]) == 0
    assert main(["export", "out", "again"]) == 0
    assert not (trained / "ran").exists(), "samestep ran the code"
    assert python_files("out") == python_files("again") == CODE, "no other Python files"
    assert python_files("runs") == []
    for name in CODE:
        assert Path("out", name).read_bytes() == Path("llada", name).read_bytes()
    assert json.loads(Path("out/config.json").read_text())["auto_map"] == AUTO_MAP
    found = read_with_transformers("out", Path("runs/a/checkpoint_epoch_2.pt"))
    assert (trained / "ran").exists(), "otherwise the absence of that file proves nothing"
    with torch.no_grad():
        wanted = samestep.load("a", "last").network(torch.tensor(TOKENS))
    begun = samestep.load("llada").network(torch.tensor(TOKENS))
    assert (wanted - begun).abs().max() > 1e-3, "training changed it"
    for name in ("logits", "of_file"):
        assert (torch.tensor(found[name]) - wanted).abs().max() < 1e-5
    assert (found["type"], found["device"], found["pad"]) == ("LLaDAModelLM", "cpu", 256)
    assert found["ids"] == open_trained("a").recipe.read_tokenizer(Path("llada")).encode("Why?")  # type: ignore[misc]
    assert found["chat"] == "user: Why\n"


def read_with_transformers(folder: str, file: Path) -> dict[str, Any]:
    job = json.dumps([str(Path(folder).absolute()), str(file), TOKENS, str(Path("cache").absolute())])
    process = subprocess.run(
        [sys.executable, "-I", "-c", READER, job], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def test_the_card_says_whose_code_it_is(home: Path) -> None:
    assert "AutoModel.from_pretrained" in "\n".join(exported("a", licence="mit"))
    card = Path("out/README.md").read_text()
    assert "are those of `llada`, which training began with" in card and "- Base model: `llada`" in card
    assert "license: mit" in card and "library_name: transformers" in card
    assert all(digest in card for digest in read_code(home / "llada")[0].sha256.values())
    assert "- Seed: " in card and "- Steps: " in card and "samestep train mdlm" in card and "rows" in card
    assert str(home) not in card and "trust_remote_code=True" in card


def test_code_goes_on_to_a_run_that_begins_with_the_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(settings("b", "--model_name=runs/a", "--max_steps=1")) == 0
    assert "configuration_llada.py, modeling_llada.py of llada, to go with exports" in " ".join(
        capsys.readouterr().out.split()
    )
    exported("b")
    assert python_files("out") == CODE


def replaced(file: Path) -> None:
    file.write_text(file.read_text() + "\n# another line\n")


def linked(file: Path) -> None:
    file.rename("elsewhere.py")
    file.symlink_to(Path("elsewhere.py").absolute())


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (replaced, r"Put modeling_llada.py in \S+/llada back as it was when training began"),
    "gone": (Path.unlink, r"Put the code in .* it has changed since \(modeling_llada.py is missing\)"),
    "a link": (linked, r"Put the code in .* it has changed since \(modeling_llada.py is a link\)"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_code_that_changed_since_training_began_is_refused(home: Path, kind: str) -> None:
    change, message = CHANGES[kind]
    change(home / "llada" / "modeling_llada.py")
    with pytest.raises(UserError, match=message):
        exported("a")
    assert not Path("out").exists()


def test_another_auto_map_than_when_training_began_is_refused(home: Path) -> None:
    config = json.loads(Path("llada/config.json").read_text())
    config["auto_map"]["AutoModel"] = "modeling_llada.Other"
    Path("llada/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"Put auto_map in \S+/llada back"):
        exported("a")


def test_a_record_cannot_name_files_elsewhere(home: Path) -> None:
    record = next(Path("runs/a").glob("artifacts/*/code.json"))
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "sha256": {**known["sha256"], "../text.py": "0"}}))
    with pytest.raises(UserError, match="back as it was"):
        exported("a")
    elsewhere = {"auto_map": {"config.json": dict.fromkeys(AUTO_MAP, "other/repo--modeling.X")}}
    record.write_text(json.dumps({**known, **elsewhere}))
    with pytest.raises(UserError, match="Put auto_map in"):
        exported("a")
    record.write_text(json.dumps({**known, **elsewhere, "sha256": {}}))
    with pytest.raises(UserError, match=r"Put configuration_llada.py, modeling_llada.py in"):
        exported("a")
    record.write_text(json.dumps({**known, **elsewhere, "why_not": "it was so"}))
    exported("a")
    assert "auto_map" not in Path("out/config.json").read_text() and python_files("out") == []
    record.write_text('{"folder": 3}')
    with pytest.raises(UserError, match=r"code.json is damaged"):
        exported("a")


def test_without_code_the_export_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move("llada", "moved")
    assert main(["export", "a", "out"]) == 0
    shown, why = capsys.readouterr().out, "the folder of llada is no longer where it was when training began"
    assert f"# AutoModel cannot open it, since it has no code of its own: {why}." in shown
    card = Path("out/README.md").read_text()
    assert why in card and "GSAI-ML/LLaDA-8B-Base" in card and "library_name" not in card
    assert "auto_map" not in json.loads(Path("out/config.json").read_text()) and python_files("out") == []
    assert main(settings("c", "--max_steps=1")) == 0
    assert "training did not begin with a folder that has some" in "\n".join(exported("c", "fresh"))
    assert samestep.load("fresh").network is not None
    assert "- Base model: none, a fresh network" in Path("fresh/README.md").read_text()


def test_the_tokenizer_names_no_code_that_is_not_there(home: Path) -> None:
    for file in [Path("llada"), *Path("runs/a").glob("artifacts/*/tokenizer")]:
        known = json.loads((file / "tokenizer_config.json").read_text())
        auto_map = {"AutoTokenizer": [None, "other/repo--tokenization.X"]}
        (file / "tokenizer_config.json").write_text(json.dumps({**known, "auto_map": auto_map}))
    shown = exported("llada")
    assert "names other/repo--tokenization.X, which is no class in a file beside it" in shown[0]
    assert "auto_map" not in Path("out/tokenizer_config.json").read_text() + Path("out/config.json").read_text()
    assert python_files("out") == []
