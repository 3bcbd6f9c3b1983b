"""What `samestep export` writes of a language model, opened by transformers and peft in a process without samestep."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import samestep
from player_folders import CHATML, player_folder
from samestep import World, open_language_model
from samestep.cli.main import main
from samestep.kit.language_model import ByteModel, FolderModel
from samestep.models.causal_lm import CausalConfig

pytestmark = pytest.mark.timeout(900)
PLAIN = ["log.quiet=true", "log.tensorboard=false", "distributed.dtype=float32", "max_steps=2"]
PAIRS = [{"prompt": f"say {n}:", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(12)]
TOKENS = [[5, 9, 70, 33, 101, 7, 12], [1, 2, 3, 44, 55, 66, 77]]
TEXT = "Hé: 你 <|endoftext|>"
FLOAT32 = 1e-5
"""How far logits may be from samestep's own, both in float32."""
BF16 = 0.05
"""The same with weights in bf16, as a share of the largest logit."""
READER = """
import json, sys
sys.modules["samestep"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
found = {}
for name, folder, base, text, tokens in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(base or folder, attn_implementation="eager", dtype=torch.float32)
    if base:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model.eval()(torch.tensor(tokens)).logits
    prompt = tokenizer(text, return_tensors="pt")
    written = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1]:]
    found[name] = {"logits": logits.double().tolist(), "prompt": prompt["input_ids"][0].tolist(),
        "written": written.tolist(), "template": bool(tokenizer.chat_template), "class": type(model).__name__}
print(json.dumps(found))
"""


class Case(NamedTuple):
    """A trained learner, the options that it is exported with, and the folder of the base of its adapters."""

    run: Path
    learner: str
    options: Sequence[str] = ()
    base: Path | None = None


def trained(folder: Path, recipe: str, preset: str, *settings: str) -> Path:
    command = ["train", recipe, "--preset", preset, f"out={folder.parent}", f"name={folder.name}", *PLAIN, *settings]
    assert main(command) == 0
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def cases(home: Path) -> Mapping[str, Case]:
    """By the names of the folders that they are exported to."""
    (home / "pairs.json").write_text(json.dumps(PAIRS))
    small = [f"{name}.network.{field}" for name in ("generator", "judge") for field in ("n_kv_heads=1",)]
    gan = trained(home / "gan", "gan", "verify", *small, *("generator.network.embedding_size=264",))
    base, half = player_folder(home / "base", CHATML), player_folder(home / "half", CHATML, dtype=torch.bfloat16)
    pairs = [f"--train_data={home / 'pairs.json'}", "data.limit=null", "learning_rate=0.03"]
    whole = trained(home / "whole", "dpo", "verify-text", *pairs, f"--base_model_name={base}")
    adapters = [f"--base_model_name={half}", "model.lora_rank=2", "reference=live", "model.lora_alpha=32"]
    adapted = trained(home / "adapted", "dpo", "verify-text", *pairs, *adapters)
    later = trained(home / "later", "dpo", "verify-text", *pairs, f"--base_model_name={gan}:generator")
    return {
        "later": Case(later, "model"),
        "generator": Case(gan, "generator"),
        "judge": Case(gan, "judge"),
        "sharded": Case(whole, "model", ["--max_shard_size", "5kB"]),
        "bf16": Case(whole, "model", ["--dtype", "bf16"]),
        "merged": Case(adapted, "model"),
        "kept": Case(adapted, "model", ["--adapters", "keep", "--license", "apache-2.0"], half),
    }


@pytest.fixture(scope="module")
def opened(home: Path, cases: Mapping[str, Case]) -> Mapping[str, Any]:
    """What the libraries find in the exported folders."""
    for name, case in cases.items():
        several = ["--learner", case.learner] if case.learner != "model" else []
        assert (
            main(["export", str(case.run), str(home / "out" / name), "--which", "last", *several, *case.options]) == 0
        )
    jobs = [
        (
            name,
            str(home / "out" / name),
            case.base and str(case.base),
            TEXT if name in ("generator", "judge", "later") else "Why",
            TOKENS,
        )
        for name, case in cases.items()
    ]
    process = subprocess.run(
        [sys.executable, "-I", "-c", READER, json.dumps(jobs)], capture_output=True, text=True, timeout=600, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    found: Mapping[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def logits_of(case: Case, tokens: Sequence[Sequence[int]] = TOKENS) -> torch.Tensor:
    network = samestep.load(case.run, "last", case.learner, dtype="float32").network
    with torch.no_grad():
        found: Any = network(torch.tensor(tokens))
    return (found if isinstance(found, torch.Tensor) else found.logits).double()


def distance(found: Any, case: Case) -> float:
    return float((torch.tensor(found["logits"]) - logits_of(case)).abs().max())


def same_greedy(case: Case, found: Any, forbidden: Sequence[int] = ()) -> bool:
    """Whether the network itself finds each written token the likeliest, but for those that are never written."""
    tokens, written = found["prompt"], found["written"]
    logits = logits_of(case, [[*tokens, *written]])[0, len(tokens) - 1 : -1]
    logits[:, list(forbidden)] = -torch.inf
    return len(written) > 0 and logits.argmax(1).tolist() == written


@pytest.mark.parametrize("learner", ["generator", "judge"])
def test_a_built_in_network_is_a_llama_with_a_tokenizer_of_bytes(
    opened: Mapping[str, Any], cases: Mapping[str, Case], home: Path, learner: str
) -> None:
    found, case = opened[learner], cases[learner]
    assert found["class"] == "LlamaForCausalLM" and found["prompt"] == [258, *TEXT.encode()], "text spells no token"
    assert distance(found, case) < FLOAT32 and logits_of(case).abs().max() > 0.01
    rows = len(found["logits"][0][0])
    assert rows == (264 if learner == "generator" else 259)
    assert same_greedy(case, found, forbidden=[256, 258, *range(259, rows)])
    again, theirs = samestep.load(home / "out" / learner).network, samestep.load(case.run, "last", learner).network
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in theirs.state_dict().items())


def test_a_model_of_a_folder_goes_back_under_its_class(
    opened: Mapping[str, Any], cases: Mapping[str, Case], home: Path
) -> None:
    found, case = opened["sharded"], cases["sharded"]
    assert len(list((home / "out" / "sharded").glob("*.safetensors"))) > 1
    assert found["template"] and found["class"] == "LlamaForCausalLM"
    assert distance(found, case) < FLOAT32 and same_greedy(case, found)
    generation = json.loads((home / "out/sharded/generation_config.json").read_text())
    assert generation["eos_token_id"] == json.loads((home / "base/generation_config.json").read_text())["eos_token_id"]


def test_version_4_of_transformers_finds_what_it_calls_otherwise(opened: Mapping[str, Any], home: Path) -> None:
    for name in ("generator", "sharded"):
        config = json.loads((home / "out" / name / "config.json").read_text())
        tokenizer = json.loads((home / "out" / name / "tokenizer_config.json").read_text())
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] and config["torch_dtype"] == "float32"
        assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_weights_in_bf16_are_near(opened: Mapping[str, Any], cases: Mapping[str, Case], home: Path) -> None:
    assert 0 < distance(opened["bf16"], cases["bf16"]) < BF16 * float(logits_of(cases["bf16"]).abs().max())
    assert json.loads((home / "out/bf16/config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("how", ["merged", "kept"])
def test_adapters_are_added_to_their_base_or_kept_for_peft(
    opened: Mapping[str, Any], cases: Mapping[str, Case], how: str
) -> None:
    found, case = opened[how], cases[how]
    assert distance(found, case) < FLOAT32 and same_greedy(case, found), "also where the base is stored in bf16"
    base = samestep.models.causal_folder.open_causal_lm(case.run.parent / "half").network().float()
    with torch.no_grad():
        before = base(torch.tensor(TOKENS)).logits
    assert (before - logits_of(case)).abs().max() > 1e-3, "training changed it"


def test_the_card_tells_the_training(opened: Mapping[str, Any], home: Path) -> None:
    whole, kept = ((home / "out" / name / "README.md").read_text() for name in ("sharded", "kept"))
    for line in ("license: unknown", "- Base model: `base`", "- Steps: 2", "- Data for training: 9 rows of pairs.json"):
        assert line in whole
    assert "kept for validation (3 rows of pairs.json)" in whole and "| accuracy |" in whole
    assert "library_name: peft" in kept and "license: apache-2.0" in kept and "model.lora_rank=2" in kept
    written = [
        file.read_text() for folder in ("sharded", "kept") for file in (home / "out" / folder).glob("*.[jm][sd]*")
    ]
    assert len(written) > 8 and not any(str(home) in text for text in written)


@pytest.mark.parametrize(
    ("name", "kind", "gone"),
    [("generator", ByteModel, "gan"), ("merged", FolderModel, "half"), ("later", FolderModel, "gan")],
)
def test_an_exported_model_can_be_named_again(
    opened: Mapping[str, Any], cases: Mapping[str, Case], home: Path, name: str, kind: type, gone: str
) -> None:
    """Also where everything else is gone; without samestep's own file it is a folder like any other."""
    wanted, alone = logits_of(cases[name]), home / "alone" / name
    assert distance(opened[name], cases[name]) < FLOAT32
    shutil.copytree(home / "out" / name, alone)
    (home / gone).rename(home / "away")
    try:
        model = open_language_model(str(alone), World.single(), shape=CausalConfig())
        assert isinstance(model, kind)
        loaded, named = samestep.load(alone).network.state_dict(), model.network().state_dict()
        assert loaded.keys() == named.keys() and all(torch.equal(loaded[key], named[key]) for key in loaded)
        (alone / "samestep.json").unlink()
        found: Any = open_language_model(str(alone), World.single(), shape=CausalConfig(), dtype="float32").network()
    finally:
        (home / "away").rename(home / gone)
    with torch.no_grad():
        assert (found(torch.tensor(TOKENS)).logits - wanted).abs().max() < FLOAT32


@pytest.mark.parametrize("name", ["merged", "generator"])
def test_training_goes_on_from_an_exported_model(opened: Mapping[str, Any], home: Path, name: str) -> None:
    pairs = [f"--train_data={home / 'pairs.json'}", "data.limit=null", "learning_rate=0"]
    run = trained(home / f"on_{name}", "dpo", "verify-text", *pairs, f"--base_model_name={home / 'out' / name}")
    first, then = (
        samestep.load(home / "out" / name).network.state_dict(),
        samestep.load(run, "last").network.state_dict(),
    )
    assert all(torch.equal(then[key], first[key]) for key in first)


def test_training_goes_on_from_kept_adapters(opened: Mapping[str, Any], cases: Mapping[str, Case], home: Path) -> None:
    pairs = [f"--train_data={home / 'pairs.json'}", "data.limit=null", "learning_rate=0", "reference=live"]
    adapters = [f"--base_model_name={home / 'half'}", "model.lora_rank=2", "model.lora_alpha=32"]
    run = trained(home / "on", "dpo", "verify-text", *pairs, *adapters, f"init_from={home / 'out/kept'}")
    assert torch.equal(logits_of(Case(run, "model")), logits_of(cases["kept"]))


def test_a_verb_of_the_recipe_takes_the_folder(
    opened: Mapping[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", str(home / "out/merged"), "--prompt", "Why", "--max_new_tokens", "3"]) == 0
    assert main(["sample", str(home / "out/kept"), "--prompt", "Why"]) == 2
    assert "export again with --adapters merge, or load" in capsys.readouterr().err
    assert main(["export", str(home / "out/merged"), str(home / "twice")]) == 2
    assert "has that form already; export the run" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_and_leaves_nothing(
    cases: Mapping[str, Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in (
        ([], "say which one is meant: 'generator' or 'judge'"),
        (["--learner", "judge", "--adapters", "keep"], "the whole network was trained"),
        (["--learner", "judge", "--adapters", "both"], "--adapters must be merge or keep"),
        (["--learner", "judge", "--license", "my own"], "--license must be the short name"),
        (["--weights", "--license", "mit"], "leave out --license"),
    ):
        assert main(["export", str(cases["judge"].run), str(tmp_path / "out"), *words]) == 2
        assert sentence in capsys.readouterr().err
        assert not list(tmp_path.glob("*out*"))
    assert main(["export", str(cases["judge"].run), str(tmp_path / "model.bin"), "--learner", "judge"]) == 2
    assert "name a folder, FILE.safetensors, or with --weights FILE.pt" in capsys.readouterr().err


def test_weights_go_into_the_file_that_is_named(cases: Mapping[str, Case], tmp_path: Path) -> None:
    file = tmp_path / "judge.pt"
    assert main(["export", str(cases["judge"].run), str(file), "--weights", "--learner", "judge"]) == 0
    assert list(tmp_path.iterdir()) == [file]
    wanted = samestep.load(cases["judge"].run, "last", "judge").network.state_dict()
    found = torch.load(file, weights_only=True)
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
