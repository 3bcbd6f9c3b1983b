"""What a name of a language model may be: a folder, a model of the Hub, a run, a checkpoint, an exported one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from hub_server import COMMIT, serving, use
from planted.two_texts import TwoConfig
from player_folders import CHATML, player_folder
from samestep import CausalConfig, LanguageModel, UserError, World, load, open_language_model
from samestep.cli.main import main
from samestep.kit.language_model import ByteModel
from samestep.kit.named_model import is_at_hand
from samestep.train.learner.content_hash import content_hash
from toys import run_on_ranks

SHAPE = TwoConfig().network
SMALL = ["--preset", "verify", "max_steps=2", "learning_rate=0.1", "distributed.dtype=float32", "log.quiet=true"]


def named(name: object, dtype: str = "auto", tokenizer: str | None = None) -> LanguageModel:
    return open_language_model(str(name), World.single(), shape=CausalConfig(), dtype=dtype, tokenizer=tokenizer)


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def train(folder: Path, name: str, *settings: str, recipe: str = "planted.two_texts") -> Path:
    assert main(["train", recipe, *SMALL, f"out={folder}", f"name={name}", *settings]) == 0
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return player_folder(tmp_path_factory.mktemp("model"), CHATML)


@pytest.fixture(scope="module")
def config_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Recipes that were started are remembered, but not in the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, config_home: None) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "run")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, folder: Path, config_home: None) -> Path:
    adapters = ["lora_rank=2", "lora_alpha=8", "lora_targets=[q_proj, down_proj]", "lora_dropout=0.1"]
    return train(tmp_path_factory.mktemp("runs"), "adapted", f"model_name={folder}", *adapters)


def test_a_folder(folder: Path, tmp_path: Path) -> None:
    model = named(folder)
    assert model.name == str(folder) and model.layers == 2 and model.limit == 512
    assert {weight.dtype for weight in named(folder, "bfloat16").network().parameters()} == {torch.bfloat16}
    other = player_folder(tmp_path)
    assert len(named(folder, tokenizer=str(other)).prompt("a")) == 1 < len(model.prompt("a")), "without a template"
    assert is_at_hand(str(folder)) and is_at_hand(None) and not is_at_hand("org/name")
    with pytest.raises(UserError, match=r"Name an existing folder, or a model of the Hub"):
        named(tmp_path / "nowhere")


def test_a_model_of_the_hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with serving({"org/llama": files}) as hub:
        use(hub.url, tmp_path / "cache", monkeypatch)
        model = named(f"org/llama@{COMMIT}")
        assert same(model.network(), named(folder).network()) and model.prompt("a") == named(folder).prompt("a")
        with pytest.raises(UserError, match="Name another revision; org/llama has no v9"):
            named("org/llama@v9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert named(f"org/llama@{COMMIT}").layers == 2, "what is in the cache needs no network"
    with pytest.raises(UserError, match="Unset HF_HUB_OFFLINE, or name a folder; org/another"):
        named("org/another")


def test_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = named(f"{run}:early")
    assert isinstance(first, ByteModel) and first.name == f"{run}:early" and first.limit == 256
    trained = load(run, "last", "early").network
    assert same(first.network(), trained) and not same(named(f"{run}:late").network(), trained)
    checkpoint = max((run / "checkpoints" / "late").glob("step_*"))
    assert same(named(checkpoint).network(), named(f"{run}:late").network()), "it has no other learner"
    assert {weight.dtype for weight in named(f"{run}:late", "bfloat16").network().parameters()} == {torch.bfloat16}
    monkeypatch.chdir(run.parent.parent)
    Path("runs").symlink_to(run.parent)
    assert same(named("run:early").network(), trained), "by its name"
    assert is_at_hand("run:early")


def test_what_a_trained_model_follows_from(run: Path, adapted: Path, folder: Path, tmp_path: Path) -> None:
    """Its own weights, not those that it began with; the tokenizer and the configuration are those of the base."""
    early, late = (sole_file(named(f"{run}:{name}")) for name in ("early", "late"))
    assert early.name == late.name == "manifest.json" and early.read_bytes() != late.read_bytes()
    assert sole_file(named(f"{run}:late")) == sole_file(named(max((run / "checkpoints" / "late").glob("step_*"))))
    model, base = named(f"{adapted}:late"), named(folder)
    assert set(model.files["weights"]) == {"manifest.json"}
    assert all(model.files[purpose] == base.files[purpose] for purpose in ("configuration", "tokenizer"))
    assert named(f"{run}:late").dtype == "float32" and named(f"{run}:late", "bfloat16").dtype == "bfloat16"
    assert model.dtype == "float32" and named(f"{adapted}:late", "bfloat16").dtype == "bfloat16"
    assert main(["export", str(run), str(tmp_path / "one.safetensors"), "--learner", "late", "--which", "last"]) == 0
    assert sole_file(named(tmp_path / "one.safetensors")) == tmp_path / "one.safetensors"
    assert main(["export", str(run), str(tmp_path / "model"), "--learner", "late", "--which", "last"]) == 0
    assert set(named(tmp_path / "model").files["weights"]) == {"model.safetensors", "samestep.json"}


def sole_file(model: LanguageModel) -> Path:
    """The only file that a model follows from."""
    (files,) = model.files.values()
    (path,) = files.values()
    return path


def open_on_ranks(name: str) -> None:
    world = World.join(device="cpu", timeout=60)
    model = open_language_model(name, world, shape=CausalConfig())
    assert len(set(world.gather(content_hash(model.network().state_dict())))) == 1
    with pytest.raises(UserError, match="names none of them"):  # on every rank, though rank 0 alone looks
        open_language_model(f"{name}st", world, shape=CausalConfig())
    world.leave()


def test_the_same_on_all_ranks(run: Path, tmp_path: Path) -> None:
    run_on_ranks(open_on_ranks, 2, f"{run}:late", logs=tmp_path)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("", r"Say which causal language model of .*run is meant: .*run:early or .*run:late"),
        (":middle", r"Say which causal language model of .*run is meant: .*; .*run:middle names none of them"),
    ],
)
def test_a_run_with_several(run: Path, end: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        named(f"{run}{end}")


def test_what_trains_no_language_model(tmp_path: Path, config_home: None) -> None:
    other = train(tmp_path, "other", "max_steps=1", recipe="planted.sound")
    with pytest.raises(UserError, match=r"it is of the recipe planted.sound, and no causal language model"):
        named(other)
    with pytest.raises(UserError, match=r"Leave out the tokenizer x: .* was trained with its own"):
        named(train(tmp_path, "texts") / "checkpoints" / "late" / "step_00000002", tokenizer="x")


def test_an_exported_model(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "model"), "--learner", "early", "--which", "last"]) == 0
    assert main(["export", str(run), str(tmp_path / "late.safetensors"), "--learner", "late", "--which", "last"]) == 0
    for place, learner in (("model", "early"), ("late.safetensors", "late")):
        model = named(tmp_path / place)
        assert same(model.network(), load(run, "last", learner).network) and model.decode(b"abc") == "abc"


def test_adapters_are_added_to_their_base(adapted: Path, folder: Path, tmp_path: Path) -> None:
    model, base = named(f"{adapted}:late"), named(folder)
    network = load(adapted, "last", "late").network
    names = {name for name, _ in network.named_parameters() if "lora_A" in name}
    assert len(names) == 4 and all("q_proj" in name or "down_proj" in name for name in names)
    assert {layer.scaling["default"] for layer in network.modules() if hasattr(layer, "lora_A")} == {4.0}
    tokens = torch.tensor([model.prompt("the sea")])
    with torch.no_grad():
        wanted, found = network(tokens).logits, model.network().eval()(tokens).logits
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        assert (found - base.network().eval()(tokens).logits).abs().max() > 1e-3
    assert model.prompt("a") == base.prompt("a"), "the tokenizer is that of the base"
    assert main(["export", str(adapted), str(tmp_path / "model"), "--learner", "late", "--which", "last"]) == 0
    assert same(named(tmp_path / "model").network(), model.network())


def test_a_run_begins_with_another(run: Path, adapted: Path, tmp_path: Path) -> None:
    """With its weights, not with new ones of its own seed; in float32 and with adapters."""
    for number, (source, adapters) in enumerate([(run, []), (run, ["lora_rank=2"]), (adapted, [])]):
        settings = [f"model_name={source}:late", "learning_rate=0", "max_steps=1", "seed=5", *adapters]
        later = train(tmp_path, f"later{number}", *settings)
        assert same(named(f"{later}:late").network(), named(f"{source}:late").network())
        shutil.rmtree(later)


def test_a_policy_begins_with_a_run(run: Path, tmp_path: Path) -> None:
    records = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": "a", "chosen": f"b{number}", "rejected": "c"} for number in range(4)]
    records.write_text("\n".join(map(json.dumps, pairs)))
    settings = [f"base_model_name={run}:late", f"train_data={records}", "data.limit=null", "learning_rate=0"]
    command = ["train", "dpo", "--preset", "verify-text", *SMALL[2:], f"out={tmp_path}", "name=dpo", *settings]
    assert main(command) == 0
    assert same(load(tmp_path / "dpo", "last").network, load(run, "last", "late").network)
    assert same(named(tmp_path / "dpo").network(), load(run, "last", "late").network), "it can be named too"
