"""Activations on disk: what a killed stage has computed is not computed again, and who may train with them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lens_runs import model_folder, rows_of, train
from torch import Tensor

from player_folders import words_with_spaces
from samestep.cli.main import main
from samestep.core.json_files import read_json, write_json
from samestep.models.causal_lm import CausalConfig
from samestep.recipes.lens.activations import ActivationReader
from samestep.recipes.lens.language_model import pretrained
from samestep.train.artifacts.array_rows import ArrayRows

FLOAT = "distributed.dtype=float32"
BATCH = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages of the preset for proofs, in float32."""
    return train(tmp_path_factory.mktemp("lens"), "verify", FLOAT)


def dump_of(run: Path) -> ArrayRows:
    return ArrayRows(run / "artifacts" / "dump" / "activations")


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().err.split())


def test_what_is_dumped(run: Path) -> None:
    key = dump_of(run).inputs
    rows = dump_of(run).rows(np.arange(27))
    assert (key["train"], key["validation"], key["test"], key["layer"]) == (13, 7, 7, 0)
    assert {name: tuple(value.shape) for name, value in rows.items()} == {
        "A": (27, 16),
        "A_prime": (27, 16),
        "tokens": (27, 16),
        "position": (27,),
        "layer": (27,),
    }
    config = read_json(run / "config.json")["config"]["pretrain"]["network"]
    with torch.no_grad():
        network = pretrained(CausalConfig(**config), run / "artifacts" / "pretrain" / "model.safetensors")
        blocks = network.transformer.blocks  # type: ignore[union-attr]
        seen: list[Tensor] = []
        blocks[0].register_forward_hook(lambda block, args, output: seen.append(output))  # type: ignore[union-attr, index]
        network(rows["tokens"].long())
    wanted = seen[0][torch.arange(27), rows["position"].long()]
    torch.testing.assert_close(rows["A"], wanted, rtol=1e-4, atol=1e-5)
    apart = (rows["A"][:13, None] - rows["A_prime"][None, :13]).abs().amax(-1) < 1e-5
    assert apart.any(0).all(), "A' is the A of another row"
    assert not apart.diagonal().any()


def test_a_killed_dump_resumes_without_computing_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    compute, calls = ActivationReader.forward, 4

    def counted(self: ActivationReader, tokens: Tensor, position: Tensor) -> Any:
        if len(seen) == calls:
            raise RuntimeError("killed")
        seen.append(len(tokens) // 2)
        return compute(self, tokens, position)

    monkeypatch.setattr(ActivationReader, "forward", counted)
    killed = train(tmp_path, "verify", FLOAT, "until=dump", code=1)
    before, calls = sum(seen), 10**6
    assert 0 < before < 27
    assert main(["train", "--resume", str(killed)]) == 0
    assert 27 <= sum(seen) <= 27 + 2 * BATCH, "once more: only what came after the last save"
    every = np.arange(27)
    torch.testing.assert_close(dump_of(killed).rows(every), dump_of(run).rows(every), rtol=0, atol=0)


def test_dumped_and_live_activations_train_alike(run: Path, tmp_path: Path) -> None:
    live = train(tmp_path, "verify", FLOAT, "activation_dumper.mode=live")
    assert not (live / "artifacts" / "dump").exists()
    found, wanted = ([row["loss"] for row in rows_of(path, "train")] for path in (live, run))
    assert found == pytest.approx(wanted, rel=1e-4)
    explained = [[row["val/fve"] for row in rows_of(path, "train", "val/fve")] for path in (live, run)]
    assert explained[0] == pytest.approx(explained[1], abs=1e-3)


def test_training_with_the_dump_of_another_run(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The built-in model is then that of the other run, too."""
    second = train(tmp_path, "verify", FLOAT, f"activation_dumper.source={run}", name="second")
    assert {row["stage"] for row in rows_of(second, "train")} == {"train"}
    assert not (second / "artifacts" / "pretrain").exists()
    assert [r["loss"] for r in rows_of(second, "train")] == [r["loss"] for r in rows_of(run, "train")]
    train(tmp_path, "verify", FLOAT, f"activation_dumper.source={run}", "layer_l=1", name="layer", code=2)
    assert "Set layer_l to 0, or name another dump" in said(capfd)
    shape = "pretrain.network.d_model=32"
    train(tmp_path, "verify", FLOAT, f"activation_dumper.source={run}", shape, name="shape", code=2)
    assert "Set pretrain.network as in the run that trained" in said(capfd)
    train(tmp_path, "verify", FLOAT, f"activation_dumper.source={tmp_path}", name="none", code=2)
    assert "holds no dump" in said(capfd)


def test_a_dump_is_found_from_anywhere_and_compared_by_evaluations(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    few = (FLOAT, "max_steps=1", "validate_every=0", "evaluation.rows=2", "evaluation.best_of=1")
    second = train(tmp_path, "verify", "activation_dumper.source=source", *few, name="second").absolute()
    monkeypatch.chdir(run)
    assert main(["evaluate", str(second)]) == 0
    layout = tmp_path / "source" / "artifacts" / "dump" / "activations" / "arrays.json"
    record = read_json(layout)
    wrong_values = {
        "computed with another layer (1 instead of 0)": {"layer": 1},
        "computed with another text cutting; dump them again": {"text cutting": None},
        "Dump again: the key of the dump says 5, 7, 7 activations": {"train": 5},
    }
    for sentence, wrong in wrong_values.items():
        values = {**record["key"]["values"], **wrong}
        write_json(layout, {**record, "key": {**record["key"], "values": values}})
        assert main(["evaluate", str(second)]) == 2
        assert sentence in said(capfd)


def test_dumps_that_do_not_fit(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, other = (model_folder(tmp_path / name, initializer_range=scale) for name, scale in (("m", 0.3), ("n", 0.2)))
    wide = model_folder(tmp_path / "wide", vocab_size=500)
    few, five = ("max_steps=1", "distributed.dtype=float32", "validate_every=0"), "activation_dumper.num_samples=5"
    first = train(tmp_path, "verify", f"model_name={folder}", *few, five, "until=dump", name="first")
    source = f"activation_dumper.source={first}"
    train(tmp_path, "verify", f"model_name={other}", source, *few, name="other", code=2)
    assert "computed with other weights (model.safetensors differs) and another configuration" in said(capfd)
    train(tmp_path, "verify", source, *few, name="bytes", code=2)
    assert f"is of another model, {folder}" in said(capfd)
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=words_with_spaces(), bos_token="<s>", eos_token="<|end|>")
    words.save_pretrained(tmp_path / "words")
    named = (f"model_name={wide}", f"tokenizer_name={tmp_path / 'words'}")
    train(tmp_path, "verify", *named, source, *few, name="other_words", code=2)
    assert "another tokenizer (tokenizer.json differs" in said(capfd)
    train(tmp_path, "verify", f"model_name={folder}", source, *few, name="same")
    (first / "artifacts" / "dump" / "activations" / "arrays.json").unlink()
    train(tmp_path, "verify", f"model_name={folder}", source, *few, name="part", code=2)
    assert "it is only a part of one" in said(capfd)
