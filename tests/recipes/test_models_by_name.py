"""Every recipe takes its models from the Hub by name: once from the network, and then from the cache."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import samestep
from encoder_toys import backbone_folder
from harness_task import CHOICE
from hub_server import COMMIT, constants_of, serving, use
from llada_folder import llada_folder
from player_folders import CHATML, player_folder
from samestep import UserError
from samestep.cli.main import main
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(600)
LLADA = f"org/llada@{COMMIT}"
SMALL = ["distributed.dtype=float32", "log.quiet=true", "log.tensorboard=false"]


SHARED = (*SMALL, "out=runs")
PLAYER, ENCODER = f"org/player@{COMMIT}", f"org/encoder@{COMMIT}"
TEXT = "\n\n".join(f"{n} and {n} are {2 * n}." for n in range(200))
READER = """
import sys
from transformers import AutoModel

folder, commit = sys.argv[1:]
print(type(AutoModel.from_pretrained(folder, trust_remote_code=True, code_revision=commit)).__name__)
"""
RECIPES = {
    "gan": [f"model_name={PLAYER}", "max_steps=1"],
    "gan, of its players": [f"generator.model={PLAYER}", f"judge.model={PLAYER}", "max_steps=1"],
    "dpo": ["preset=verify-text", f"base_model_name={PLAYER}", "max_steps=1"],
    "lens": [f"model_name={PLAYER}", f"tokenizer_name={PLAYER}", "max_steps=1", "evaluation.rows=0"],
    "distill": [f"teacher_model={ENCODER}", f"student_model={ENCODER}", "max_steps=1", "skip_phase2=true"],
}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tokens_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_llada_of_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Data, training, sampling, evaluation and export by one name; its code is neither fetched nor run."""
    files = files_of(llada_folder(home / "llada", home / "ran"))
    shutil.rmtree(home / "llada")
    (home / "text.txt").write_text(TEXT)
    prepare = ["data", "prepare", "text.txt", "--tokenizer", LLADA, "--sequence_length", "16", "--out"]
    train = ["train", "mdlm", "--preset=verify", *SMALL, "--log.samples=0", f"--model_name={LLADA}"]
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
    prepare[prepare.index(LLADA)] = "a"  # the run
    assert main([*prepare, "of_run"]) == 0
    assert tokens_in(home / "of_run") == tokens_in(home / "data")
    assert main(["export", LLADA, "copy"]) == 0
    assert main(["export", "b", "trained"]) == 0
    named = json.loads((home / "trained" / "config.json").read_text())["auto_map"]
    assert named["AutoModel"] == "org/llada--modeling_llada.LLaDAModelLM"
    card = (home / "trained" / "README.md").read_text()
    assert f"is that of `{LLADA}` on the Hub" in card and f'code_revision="{COMMIT}"' in card
    assert samestep.load(LLADA).network is not None
    if find_spec("lm_eval") is not None:
        (home / "shorter.yaml").write_text(CHOICE)
        (home / "questions.jsonl").write_text('{"q": "1 and 1 are", "choices": [" 2", " 3"], "gold": 0}\n')
        monkeypatch.setenv("HF_DATASETS_CACHE", str(home / "datasets"))
        assert main(["evaluate", LLADA, "--tasks=shorter", "--include_path=.", "--draws=2", "--out=found.json"]) == 0
        assert "shorter" in (home / "found.json").read_text()
    assert not (home / "ran").exists(), "nobody ran its code"
    with serving({"org/llada": files}) as again:
        names = {"HF_ENDPOINT": again.url, "HF_HOME": str(home / "other"), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-I", "-c", READER, str(home / "trained"), COMMIT]
        done = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["LLaDAModelLM"], done.stderr[-3000:]
    assert (home / "ran").exists()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("published")
    player, encoder = player_folder(folder / "player", CHATML), backbone_folder("bert", folder / "encoder")
    return {"org/player": files_of(player), "org/encoder": files_of(encoder)}


@pytest.mark.parametrize("case", RECIPES)
def test_a_model_of_the_hub(
    case: str, published: dict[str, dict[str, bytes]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = case.partition(",")[0]
    preset, *settings = sorted([*RECIPES[case], *(["preset=verify"] if recipe != "dpo" else [])], key=is_no_preset)
    with serving(published) as hub:
        use(hub.url, home / "cache", monkeypatch)
        assert main(["train", recipe, preset, *settings, *SHARED, "name=a"]) == 0
        assert hub.fetched().count("model.safetensors") == 1
    learner = {"gan": "judge"}.get(recipe)
    assert samestep.load("a", "last", learner).network is not None, "from the cache"


def is_no_preset(setting: str) -> bool:
    return not setting.startswith("preset=")


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("mdlm", "model_name"),
        ("gan", "generator.init_from"),
        ("gan", "init_from"),
        ("dpo", "init_from"),
        ("distill", "teacher_model"),
        ("lens", "model_name"),
    ],
)
def test_offline(
    recipe: str, setting: str, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "cache"))
    assert main(["train", recipe, "preset=verify", f"{setting}=org/absent@v2", *SHARED, "name=a"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "Unset HF_HUB_OFFLINE, or name a folder; org/absent@v2 is not complete in" in said
    assert not Path("runs/a").exists()


@pytest.mark.parametrize("verb", [["sample"], ["evaluate"], ["export"]])
def test_a_verb_offline(
    verb: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "cache"))
    assert main([*verb, "org/absent", *(["out"] if verb == ["export"] else [])]) == 2
    assert "Unset HF_HUB_OFFLINE, or name a folder; org/absent is not complete" in " ".join(
        capfd.readouterr().err.split()
    )


def test_what_no_recipe_knows_is_refused_before_its_weights_are_downloaded(
    published: dict[str, dict[str, bytes]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(published) as hub:
        use(hub.url, home / "cache", monkeypatch)
        with pytest.raises(UserError, match=r"no recipe knows the model in .*settings of training, such as model_name"):
            samestep.load(PLAYER)
        assert "config.json" in hub.fetched() and "model.safetensors" not in hub.fetched()


def run_on_a_rank(url: str, cache: str, command: list[str]) -> None:
    from huggingface_hub import constants

    for name, value in constants_of(url, cache).items():
        setattr(constants, name, value)
    assert main(command) == 0


@pytest.mark.timeout(900)
def test_two_ranks_download_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(llada_folder(home / "llada", home / "ran"))
    (home / "text.txt").write_text(TEXT)
    prepare = ["data", "prepare", "text.txt", "--tokenizer", "llada", "--sequence_length", "16", "--out", "data"]
    assert main(prepare) == 0
    train = ["train", "mdlm", "preset=verify", *SHARED, "log.samples=0", "model_name=org/llada", "max_steps=1"]
    train += ["data.path=data", "data.limit=null", "name=a"]
    with serving({"org/llada": files}) as hub:
        run_on_ranks(run_on_a_rank, 2, hub.url, str(home / "cache"), train, logs=home / "logs", timeout=300)
        wanted = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        assert hub.fetched() == wanted, "the small files for the settings, the weights for the training"
        hub.requests.clear()
        sample = ["sample", "org/llada", "--prompt", "1 and", "--samples", "2", "--max_new_tokens", "4", "--out"]
        run_on_ranks(run_on_a_rank, 2, hub.url, str(home / "new"), [*sample, "two.jsonl"], logs=home / "logs_2")
        assert hub.fetched() == wanted
    use("http://127.0.0.1:9", home / "new", monkeypatch)
    assert main([*sample, "one.jsonl"]) == 0
    assert Path("one.jsonl").read_text() == Path("two.jsonl").read_text()


@pytest.mark.timeout(300)
def test_two_ranks_train_on_a_dataset_that_is_downloaded_once(home: Path) -> None:
    records = "".join(json.dumps({"text": f"text number {n}, and what follows"}) + "\n" for n in range(40))
    train = ["train", "mdlm", "preset=verify", *SHARED, "log.samples=0", "max_steps=1", "data.limit=null"]
    with serving({"org/records": {"train.jsonl": records.encode(), "README.md": b"# Texts"}}) as hub:
        cache, data = str(home / "cache"), ["data.path=org/records"]
        run_on_ranks(run_on_a_rank, 2, hub.url, cache, [*train, *data, "name=a"], logs=home / "logs", timeout=200)
        assert hub.fetched() == ["README.md", "train.jsonl"]
        assert sum(line.startswith("HEAD") for line in hub.requests) == 2
