"""What an exported folder says of the run: no path of the machine, no secret."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.kit.transformers_export import export_language_model
from samestep.train.trained.export import ExportOptions
from samestep.train.trained.told import told, told_text
from samestep.train.trained.trained_model import open_trained

ISSUED = "hf_" + "aBcD" * 6
WORD = "swordfish-42"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("org/name", "org/name"),
        (f"org/name@{'0a' * 20}", f"org/name@{'0a' * 20}"),
        ("pairs.json", "pairs.json"),
        ("data/pairs.json", "pairs.json"),
        ("/home/me/runs/first:generator", "first:generator"),
        ("~/work/pairs.jsonl", "pairs.jsonl"),
        ("/home/me/my data/pairs.json", "pairs.json"),
        ("read /home/me/notes.txt first", "read notes.txt first"),
        ("Explain <embed>: yes/no ", "Explain <embed>: yes/no "),
        ("a.json:0.5,/data/b.json:0.5", "a.json:0.5,b.json:0.5"),
        ("https://user:pass@host/v1", None),
        ("http://node7.local:8000/v1", None),
        ("s3://bucket/key", None),
        ("me@cluster:/data", None),
        (ISSUED, None),
        ("sk-proj-0123456789abcdef", None),
        ("AKIAIOSFODNN7EXAMPLE", None),
        ("0123456789abcdef0123456789abcdef01234567", None),
        (f"the {WORD} of the day", None),
    ],
)
def test_what_is_told_of_a_text(text: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", WORD)
    assert told_text(text) == said


def test_what_is_told_of_settings() -> None:
    settings = {
        "model": {"name": "/models/base", "api_key": "x", "hub_token": "y", "key": "z", "password": "short"},
        "max_new_tokens": 8,
        "text_key": "body",
        "files": ["/a/b.json", ISSUED, "c.json"],
        "shares": {"/a/b.json": 0.5, "c.json": 0.5},
        "none": None,
    }
    assert told(settings) == {
        "model": {"name": "base"},
        "max_new_tokens": 8,
        "text_key": "body",
        "files": ["b.json", "c.json"],
        "shares": {"b.json": 0.5, "c.json": 0.5},
        "none": None,
    }


def test_nothing_planted_reaches_an_exported_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of data, runs and first weights, a run's name, settings of W&B, and the environment."""
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", WORD)
    pairs = [{"prompt": f"say {n}:", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(12)]
    (home / "pairs.json").write_text(json.dumps(pairs))
    settings = ["train", "dpo", "--preset=verify-text", f"out={home}", "log.quiet=true", "log.tensorboard=false"]
    settings += [f"data.train={home / 'pairs.json'}", "max_steps=1"]
    assert main([*settings, "name=first"]) == 0
    assert main([*settings, f"name={WORD}-run", f"init_from={home / 'first'}"]) == 0
    trained = open_trained(str(home / f"{WORD}-run"))
    logged = replace(trained.config.log, wandb=True, wandb_project=ISSUED)
    export_language_model(
        replace(trained, config=replace(trained.config, log=logged)), tmp_path / "model", ExportOptions()
    )
    texts = {file.name: file.read_text() for file in (tmp_path / "model").glob("*.[jm][sd]*")}
    assert {"README.md", "samestep.json", "config.json"} <= texts.keys()
    for planted in (str(tmp_path), "alice", WORD, ISSUED):
        assert not [name for name, text in texts.items() if planted in text], planted
    assert "- First weights: `first`" in texts["README.md"] and "data.train=pairs.json" in texts["README.md"]


RECORDS = "".join(json.dumps({"text": f"text {n} of some", "title": "t", "genre": "g"}) + "\n" for n in range(30))


@pytest.mark.parametrize(
    ("recipe", "args", "targets"),
    [
        ("mdlm", ["--preset=verify", "data.limit=null", "data.path={data}"], ["folder", "model.safetensors"]),
        ("gan", ["--preset=verify"], ["generator", "judge.safetensors"]),
        ("dpo", ["--preset=verify"], ["folder", "model.safetensors"]),
        ("distill", ["--preset=verify"], ["folder", "model.safetensors"]),
        ("lens", ["--preset=verify", "evaluation.rows=0"], ["folder", "model.safetensors"]),
    ],
)
def test_no_export_of_any_recipe_tells_of_the_machine(
    recipe: str, args: list[str], targets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes of all files: also those of the record inside of a single file."""
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", WORD)
    (home / "texts.jsonl").write_text(RECORDS)
    named = [text.format(data=home / "texts.jsonl") for text in args]
    quiet = ["log.quiet=true", "log.tensorboard=false", "max_steps=1"]
    assert main(["train", recipe, *named, *quiet, f"out={home}", f"name={WORD}-run"]) == 0
    for target in targets:
        learner = ["--learner", target.partition(".")[0]] if recipe == "gan" else []
        assert main(["export", str(home / f"{WORD}-run"), str(tmp_path / "out" / target), *learner]) == 0
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert any(b"samestep" in file.read_bytes() for file in files if file.suffix == ".safetensors")
    for planted in (str(tmp_path), "alice", WORD):
        found = [file.name for file in files if planted.encode() in file.read_bytes()]
        assert not found, planted
