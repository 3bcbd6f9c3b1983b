"""What `samestep.load` gives: methods of the recipe, with the options of the command line and the same results."""

import json
from pathlib import Path

import pytest
import torch

import samestep
from samestep import UserError
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(300)
QUIET = ["log.quiet=true", "log.tensorboard=false", "max_steps=2"]
OWN = """
from dataclasses import dataclass
import torch
from samestep import Config, Fit, Model, Recipe, Stage, Trained, Verb, World

@dataclass(frozen=True)
class Asked:
    at: float = 0.0

def answer(trained: Trained, options: Asked, world: World):
    value = float(trained.network("model", world.device)(torch.tensor([[options.at]])))
    return [{"text": f"{value:.6f}", "value": value, "seed": trained.config.seed}]

def ask(model: Model, at: float, **options):
    return model.use(verb, at=at, **options)[0]

def build(bench):
    rows = [{"x": torch.tensor([float(n)])} for n in range(8)]
    return Fit(bench.learner(torch.nn.Linear(1, 1)), bench.feed(rows), lambda net, b: {"y": net(b["x"])[:, 0] ** 2})

verb = Verb(answer, Asked, aliases={"s": "seed"})
recipe = Recipe(Config, lambda config: [Stage("fit", build)], sample=verb, methods={"ask": ask})
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "own.py").write_text(OWN)
    for recipe, name in (("mdlm", "texts"), ("gan", "two"), (str(folder / "own.py"), "own")):
        preset = [] if name == "own" else ["--preset", "verify"]
        assert main(["train", recipe, *preset, f"out={folder}", f"name={name}", *QUIET]) == 0
    return folder


@pytest.mark.parametrize("name", ["texts", "two"])
def test_generate_writes_what_the_command_does(name: str, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The \nAnd\n")
    options = {"samples": 2, "max_new_tokens": 9, "temperature": 0.8}
    words = [f"--{option}={value}" for option, value in options.items()]
    out = tmp_path / "texts.jsonl"
    assert main(["sample", str(runs / name), "--prompts", str(tmp_path / "prompts.txt"), f"--out={out}", *words]) == 0
    written = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    model = samestep.load(runs / name, "last")
    assert model.generate(["The ", "And"], **options) == written
    assert model.generate("The ", **options) == written[:2], "a text does not depend on others"
    assert model.generate("The ", **options, seed=5) != written[:2], "settings of the run"


def test_weights_are_read_once_and_when_they_are_needed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    plain = samestep.Trained._filled
    monkeypatch.setattr(samestep.Trained, "_filled", lambda *args: reads.append(args[2]) or plain(*args))
    model = samestep.load(runs / "texts", "last")
    assert not reads
    for _ in range(2):
        model.generate("a", max_new_tokens=2)
    assert len(reads) == 1
    assert model.network is model.network and len(reads) == 2
    assert not model.network.training


def test_methods_of_a_recipe_of_ones_own(runs: Path) -> None:
    model = samestep.load(runs / "own", "last")
    assert model.ask(0.5)["value"] == float(model.network(torch.tensor([[0.5]])))
    assert model.ask(0.5, s=7)["seed"] == 7
    assert "ask" in dir(model) and "generate" not in dir(model)
    assert repr(model).startswith("<Model of recipe ")


def test_mistakes_are_sentences(runs: Path) -> None:
    model = samestep.load(runs / "texts", "last")
    with pytest.raises(AttributeError, match=r"a model of recipe 'mdlm' has no 'embed'; its methods are: 'generate'"):
        _ = model.embed
    with pytest.raises(UserError, match="did you mean temperature"):
        model.generate("a", temperatur=1)
    with pytest.raises(UserError, match="Give a text, or a list of texts"):
        model.generate(["a", 3])
    with pytest.raises(UserError, match="'judg'"):
        samestep.load(runs / "two", "last", "judg")
