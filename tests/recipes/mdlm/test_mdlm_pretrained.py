"""Trained networks opened from a run, a checkpoint or a published folder, and exported as a folder."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import samestep
from samestep.checkpoint.store import Store
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.data.tokenizer import load_tokenizer
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.vocabulary import ByteTokenizer
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm import MdlmConfig
from samestep.recipes.mdlm.corpus import DataConfig
from samestep.recipes.mdlm.pretrained import export, model_tokenizer, read_pretrained, resolve_network
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.train.learner.ema import AVERAGE
from samestep.train.record.config import Log
from samestep.train.record.run_record import RunRecord
from samestep.train.trained import export as exporting
from samestep.train.trained.export import ExportOptions, bytes_of
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.world.world import World
from toys import made

SHAPE = TransformerConfig(d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, mlp_hidden_size=48, max_sequence_length=64)
TOKENS = torch.randint(259, (2, 9), generator=torch.Generator().manual_seed(1))


class Saved:
    """A part of a checkpoint's state."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["model"]


def network(seed: int = 0, shape: TransformerConfig = SHAPE) -> Transformer:
    return made(lambda: Transformer(shape), seed)


Make = Callable[..., RunDir]


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a run with one checkpoint, as training leaves it."""
    monkeypatch.chdir(tmp_path)

    def make(
        shape: TransformerConfig = SHAPE, averaged: bool = False, tokenizer: Any = None, **settings: Any
    ) -> RunDir:
        config = MdlmConfig(model=shape, log=Log(samples=0), **settings)
        rundir = RunDir(Path("runs/a"))
        RunRecord("mdlm", dump(config), "", 8).write(rundir)
        state = {"model": Saved(network(shape=shape).state_dict())}
        state |= {AVERAGE: Saved(network(9, shape).state_dict())} if averaged else {}
        learners = {"model": {"state": "model", "average": AVERAGE if averaged else None}}
        about = {"recipe": "mdlm", "stage": "pretrain", "config": dump(config), "learners": learners}
        Store(rundir.checkpoints("pretrain"), World.single()).save(5, state, about)
        if tokenizer:
            tokenizer.save(rundir.artifacts("pretrain") / "tokenizer")
        return rundir

    return make


def logits(trained: Trained) -> Tensor:
    with torch.no_grad():
        found: Tensor = trained.build(lambda: Transformer(trained.config.model))(TOKENS)
    return found


def exported(source: str, folder: str, **options: Any) -> Path:
    export(open_trained(source), Path(folder), ExportOptions(**options))
    return Path(folder)


@pytest.mark.parametrize("limit", [10**9, 20_000])
def test_there_and_back_gives_the_same_logits_bit_for_bit(make_run: Make, limit: int) -> None:
    make_run()
    wanted = network()(TOKENS)
    assert torch.equal(logits(open_trained("a")), wanted)
    exported("a", "out", max_shard_size=limit)
    assert (len(list(Path("out").glob("*.safetensors"))) > 1) == (limit < 10**9)
    back = open_trained("out")
    assert replace(back.config.model, embedding_size=None) == SHAPE
    assert torch.equal(logits(back), wanted)
    again = exported("out", "again", max_shard_size=limit)
    files, files_again = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in (Path("out"), again))
    assert b"- Seed: 0" in files.pop("README.md") and b"Seed" not in files_again.pop("README.md"), "no run says it"
    assert files == files_again


def test_names_and_types_are_the_published_ones(make_run: Make) -> None:
    make_run()
    found = load_file(exported("a", "out", dtype="bf16") / "model.safetensors")
    wanted = {f"model.{name}": tensor.bfloat16() for name, tensor in network().state_dict().items()}
    assert found.keys() == wanted.keys()
    assert "model.transformer.blocks.1.ff_proj.weight" in found
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert found["model.transformer.ln_f.weight"].dtype == torch.bfloat16
    assert json.loads(Path("out/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert logits(open_trained("out")).dtype == torch.float32


def test_a_network_is_loaded_without_its_data_and_a_folder_names_its_recipe(make_run: Make) -> None:
    make_run(data=DataConfig(path="gone.txt"))
    assert torch.equal(samestep.load("a").network(TOKENS), network()(TOKENS))
    exported("a", "out")
    record = json.loads(Path("out/samestep.json").read_text())
    assert record.keys() == {"recipe", "files"} and record["recipe"] == "mdlm"
    assert {*record["files"], "samestep.json"} == {path.name for path in Path("out").iterdir()}
    assert torch.equal(samestep.load("out").network(TOKENS), network()(TOKENS))
    Path("out/samestep.json").write_text('{"recipe": "planted.sound"}')
    with pytest.raises(UserError, match=r"made by the recipe 'planted.sound', which does not ship with samestep"):
        _ = samestep.load("out").network
    Path("out/samestep.json").write_text('{"recipe": "distill"}')
    with pytest.raises(UserError, match=r"the recipe distill does not know the model in out; name another one"):
        _ = samestep.load("out").network
    assert torch.equal(samestep.load("out", recipe="mdlm").network(TOKENS), network()(TOKENS))
    Path("out/samestep.json").unlink()
    assert open_trained("out").name == "mdlm", "by its config.json, as folders that others published"


def test_averaged_weights_are_the_ones_to_use(make_run: Make) -> None:
    make_run(averaged=True)
    assert torch.equal(logits(open_trained("a")), network(9)(TOKENS))
    exported("a", "out")
    assert torch.equal(logits(open_trained("out")), network(9)(TOKENS))


def test_the_tokenizer_is_exported_too(make_run: Make) -> None:
    tokenizer = CharTokenizer.of("abcdef")
    rundir = make_run(replace(SHAPE, vocab_size=tokenizer.vocabulary.size), tokenizer=tokenizer)
    (rundir.artifacts("pretrain") / "tokenizer" / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    folder = exported("a", "out")
    assert load_tokenizer(folder).vocabulary == tokenizer.vocabulary
    assert model_tokenizer(open_trained("out")).encode("fab") == tokenizer.encode("fab")
    assert (folder / "tokenizer_config.json").read_text() == '{"model_max_length": 7}'
    config = json.loads((folder / "config.json").read_text())
    assert (config["mask_token_id"], config["eos_token_id"], config["bos_token_id"]) == (6, 7, 8)


def test_without_a_tokenizer_tokens_are_bytes(make_run: Make) -> None:
    make_run()
    assert isinstance(model_tokenizer(open_trained("a")), ByteTokenizer)
    assert isinstance(model_tokenizer(open_trained(str(exported("a", "out")))), ByteTokenizer)


def test_a_tokenizer_of_another_network_is_refused(make_run: Make) -> None:
    make_run(replace(SHAPE, vocab_size=200))
    with pytest.raises(UserError, match="has 259 tokens and the network 200; put the tokenizer"):
        exported("a", "out")
    assert not Path("out").exists()
    shutil.rmtree("runs")
    tokenizer = CharTokenizer.of(chr(i) for i in range(300))
    make_run(replace(SHAPE, vocab_size=303), tokenizer=tokenizer)
    (exported("a", "out") / "samestep_tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has the mask token 300, but the tokenizer in out has 256"):
        model_tokenizer(open_trained("out"))


def test_a_mask_outside_the_embedding_is_refused(make_run: Make) -> None:
    make_run()
    config = json.loads((exported("a", "out") / "config.json").read_text())
    Path("out/config.json").write_text(json.dumps({**config, "mask_token_id": 259}))
    with pytest.raises(UserError, match=r"out/config.json sets mask_token_id to 259, outside of the embedding"):
        open_trained("out")


def test_an_opened_checkpoint_is_that_one(make_run: Make) -> None:
    rundir = make_run(tokenizer=ByteTokenizer())
    step = rundir.checkpoints("pretrain") / "step_00000005"
    for text in ("a", "runs/a", str(step)):
        trained = open_trained(text)
        assert (trained.name, trained.config.model, trained.source) == ("mdlm", SHAPE, step)
        assert trained.files.resolve() == rundir.artifacts("pretrain").resolve()
        assert trained.tokenizer.name == "tokenizer"
    shutil.copytree(step, "elsewhere/step_00000005")
    moved = open_trained("elsewhere/step_00000005")
    assert moved.files == Path("elsewhere/step_00000005")
    assert torch.equal(logits(moved), network()(TOKENS))
    (step / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"step_00000005 is damaged: manifest.json does not match its checksum"):
        open_trained(str(step))


def test_what_is_no_model_is_refused(make_run: Make) -> None:
    make_run()
    Path("other").mkdir()
    Path("other/config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="no recipe knows the model in other"):
        open_trained("other")
    with pytest.raises(UserError, match="'nothing' is not a run directory"):
        open_trained("nothing")


def test_a_folder_is_adopted_or_not(make_run: Make, tmp_path: Path) -> None:
    rundir = make_run()
    config = read_pretrained(exported("a", "out"))
    assert config is not None
    assert config.model.kv_heads == 2
    assert config.sampling.max_new_tokens == 64, "no longer than the network accepts"
    assert read_pretrained(rundir.path) is None
    assert read_pretrained(tmp_path) is None


def test_a_folder_is_sampled_as_its_run_was(make_run: Make) -> None:
    how = SamplingConfig(max_new_tokens=32, steps=32, temperature=0.4, remasking="random")
    make_run(sampling=how)
    folder = exported("a", "out")
    assert open_trained("out").config.sampling == how
    for broken in ('{"heat": 1}', '{"max_new_tokens": 0}', '{"len', "[1]"):
        (folder / "sampling.json").write_text(broken)
        with pytest.raises(UserError, match=r"out/sampling.json cannot be used \(fix it or remove it\): "):
            open_trained("out")
    (folder / "sampling.json").unlink()
    llada = {"temperature": 0.0, "cfg_scale": 0.0, "remasking": "low_confidence", "block_length": 32, "eos": "free"}
    found = open_trained("out").config.sampling
    assert found == SamplingConfig(max_new_tokens=64, **llada), "without the file, as LLaDA's authors sample"  # type: ignore[arg-type]
    assert found.passes == 64, "one token a pass"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_sequence_length": 4096}))
    assert open_trained("out").config.sampling.max_new_tokens == 128


def test_settings_that_contradict_the_first_weights_are_refused() -> None:
    usual = TransformerConfig(d_model=96, n_heads=3)
    assert resolve_network("out", SHAPE, usual, usual) == SHAPE, "the pretrained network replaces that of the preset"
    asked = replace(usual, max_sequence_length=16, n_kv_heads=2, n_layers=2, n_heads=4)
    with pytest.raises(UserError, match=r"model.n_layers=5 contradicts out, where it is 2; leave the setting out"):
        resolve_network("out", SHAPE, replace(asked, n_layers=5), usual)
    assert resolve_network("out", SHAPE, asked, usual) == replace(SHAPE, max_sequence_length=16)
    others = {"d_model": 192, "n_kv_heads": 1, "embedding_size": 260, "rope_theta": 1e4, "causal": True}
    for name, value in others.items():
        with pytest.raises(UserError, match=rf"model.{name}={value} contradicts out, where it is"):
            resolve_network("out", SHAPE, replace(usual, **{name: value}), usual)


def test_an_existing_folder_is_replaced_only_on_request_and_only_a_model(make_run: Make) -> None:
    make_run()
    Path("out").mkdir()
    exported("a", "out")  # an empty folder is replaced
    with pytest.raises(UserError, match="out exists; choose another folder, or replace it with --overwrite"):
        exported("a", "out")
    exported("a", "out", overwrite=True, dtype="bf16")
    assert load_file("out/model.safetensors")["model.transformer.ln_f.weight"].dtype == torch.bfloat16
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="mine exists and was not exported by samestep"):
        exported("a", "mine", overwrite=True)
    Path("out/notes.txt").write_text("mine too")
    with pytest.raises(UserError, match=r"out also holds notes.txt, which was not exported; choose another folder"):
        exported("a", "out", overwrite=True)
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "out", "runs"], "nothing is left over"


def test_a_full_disk_leaves_what_was_there(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run()
    before = (exported("a", "out") / "model.safetensors").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "write_safetensors", full)
    with pytest.raises(UserError, match=r"cannot write out \(No space left on device\)"):
        exported("a", "out", overwrite=True)
    assert Path("out/model.safetensors").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["out", "runs"]


def test_a_causal_network_has_no_published_form(make_run: Make) -> None:
    make_run(replace(SHAPE, causal=True))
    with pytest.raises(UserError, match="has no causal networks"):
        exported("a", "out")


def test_sizes() -> None:
    assert [bytes_of(text) for text in ("5GB", "1.5 mb", "20k", "300", "7b")] == [5 * 10**9, 1_500_000, 20_000, 300, 7]
    for text in ("", "GB", "5XB", "-1GB", "5 G B"):
        with pytest.raises(UserError, match="is not a size; write for example 5GB"):
            bytes_of(text)
