"""The base of a learner with adapters that came from another run: stored in its own run, and found from there."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import samestep
from adapter_toys import LORA, launch_recipe
from samestep import Bench, Config, Fit, Recipe, Stage
from samestep.checkpoint.loading import read_tensors
from samestep.data.loading import Batch
from samestep.train.learner.lora import base_parameters
from toys import Net, Points, made

pytest.importorskip("peft")
STORED = "artifacts/fit/base_model.safetensors"


@dataclass(frozen=True)
class Adapted(Config):
    """Of a plain network, or of adapters in one."""

    adapters: bool = True


def build(bench: Bench) -> Fit:
    network = lambda: made(Net).float()  # noqa: E731
    learner = bench.learner(network, lora=LORA if bench.config.adapters else None)

    def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"error": (module(batch["x"].float(), batch["tokens"]) - batch["y"].float()).square().sum(1)}

    return Fit(learner, bench.feed(Points(24)), loss)


recipe = Recipe(Adapted, lambda config: [Stage("fit", build), Stage("more", build, start="fit")])
launch = partial(launch_recipe, __name__)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of adapters that was stopped, resumed and finished after the run of its base was gone."""
    folder = tmp_path_factory.mktemp("home")
    launch(folder, "plain", adapters=False)
    plain = folder / "plain/checkpoints/more/step_00000004"
    torch.save(read_tensors(plain, "model/model"), folder / "wanted.pt")
    launch(folder, "adapted", 75, init_from=str(folder / "plain"), max_time="0s")
    shutil.rmtree(folder / "plain/checkpoints")  # retention does it to one when the run goes on
    launch(folder, "adapted", init_from=str(folder / "plain"))
    return folder


def is_base(network: nn.Module, home: Path) -> bool:
    found, wanted = base_parameters(network), torch.load(home / "wanted.pt")
    return all(torch.equal(tensor, wanted[name]) for name, tensor in found.items()) and bool(found)


def test_a_resume_and_loading_find_the_base_in_their_own_run(home: Path, tmp_path: Path) -> None:
    assert (home / "adapted" / STORED).exists()
    for stage in ("fit", "more"):
        assert is_base(samestep.load(home / "adapted", stage=stage).network, home)
    shutil.copytree(home / "adapted", tmp_path / "moved")
    assert is_base(samestep.load(tmp_path / "moved").network, home)


def test_a_run_that_begins_with_adapters_takes_their_base_too(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "adapted", tmp_path / "moved")
    launch(tmp_path, "next", 75, init_from=str(tmp_path / "moved"), max_time="0s")
    shutil.rmtree(tmp_path / "moved")
    launch(tmp_path, "next", init_from=str(tmp_path / "moved"))
    assert (tmp_path / "next" / STORED).exists()
    assert is_base(samestep.load(tmp_path / "next").network, home)


def test_a_checkpoint_outside_of_its_run_finds_the_base_or_names_it(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "adapted", tmp_path / "run")
    # The copy records where the run was trained, which is still there.
    checkpoint = shutil.copytree(tmp_path / "run/checkpoints/more/step_00000004", tmp_path / "step_00000004")
    assert is_base(samestep.load(checkpoint).network, home)
    hidden = (home / "adapted").rename(home / "hidden")
    try:
        with pytest.raises(samestep.UserError, match=rf"on a base that is not there: put back .*/{STORED}, or copy"):
            _ = samestep.load(checkpoint).network
        assert is_base(samestep.load(tmp_path / "run").network, home), "a run that was moved has it"
        shutil.move(tmp_path / "run" / STORED, checkpoint)
        assert is_base(samestep.load(checkpoint).network, home)
        with pytest.raises(samestep.UserError, match=rf"on a base that is not there: put back .*run/{STORED}, or copy"):
            _ = samestep.load(tmp_path / "run").network
    finally:
        hidden.rename(home / "adapted")
