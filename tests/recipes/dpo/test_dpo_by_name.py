"""A network for proteins by the name of what was trained before."""

from pathlib import Path

import pytest
import torch
from dpo_runs import train

from samestep import UserError, load
from samestep.cli.main import main
from samestep.recipes.dpo.protein_family import find_weights

pytestmark = pytest.mark.timeout(600)


def test_a_run_a_checkpoint_and_an_exported_file(tmp_path: Path) -> None:
    train(tmp_path, "verify", name="first")
    first = load(tmp_path / "first", "last")
    assert main(["export", str(tmp_path / "first"), str(tmp_path / "one.safetensors")]) == 0
    names = (tmp_path / "first", first.trained.source, tmp_path / "one.safetensors")
    for number, name in enumerate(names):
        still = ["max_steps=1", "learning_rate=0", "weight_decay=0", f"base_model_name={name}"]
        train(tmp_path, "tiny", *still, "data.limit=14", name=f"second_{number}")
        second = load(tmp_path / f"second_{number}", "last").network.state_dict()
        for key, weight in first.network.state_dict().items():
            torch.testing.assert_close(second[key], weight, rtol=0, atol=0)


def test_a_model_of_the_hub_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"Download org/weights yourself \(hf download\), and name a weight file in it"):
        find_weights("org/weights", None)
