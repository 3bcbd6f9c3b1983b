"""Each mistake has a sentence of its own, before anything is computed."""

from pathlib import Path

import pytest
from lens_runs import model_folder, train

from samestep.cli.main import main


def refused(settings: list[str], capfd: pytest.CaptureFixture[str], folder: Path) -> str:
    preset = [] if "--preset" in settings else ["--preset", "verify"]
    code = main(["train", "lens", *preset, f"out={folder / 'runs'}", *settings])
    found = " ".join(capfd.readouterr().err.split())
    assert code == 2, found
    assert "Traceback" not in found
    return found


CASES = {
    "layer_l=2": "Name a model_name, or set layer_l from 0 to 1: the built-in one has 2 layers; it is 2.",
    "layer_l=-1": "layer_l must be a whole number of at least 0",
    "trainable_components.encoder.layer=7": "or set trainable_components.encoder.layer from 0 to 1",
    "t_text=0": "t_text must be a whole number of at least 1",
    "decoder_prompt=explain this": "Write <embed> once in decoder_prompt",
    "mse_weight=-1": "mse_weight must be a number of at least 0",
    "gumbel_tau_schedule.num_steps=5m": "Write a length as 500s",
    "gumbel_tau_schedule.type=step": "gumbel_tau_schedule.type must be one of constant, linear, cosine, exponential",
    "trainable_components.decoder.base_model=half": "base_model must be true or false or lora",
    "activation_dumper.seq_len=1": "activation_dumper.seq_len must be a whole number of at least 2",
    "activation_dumper.num_samples=1": "activation_dumper.num_samples must be a whole number of at least 2",
    "activation_dumper.source=nowhere": "holds no dump",
    "tokenizer_name=x": "tokenizer_name has no effect: the built-in model reads bytes; set model_name",
    "pretrain.network.vocab_size=300": "Leave pretrain.network.vocab_size at 259",
    "grpo.group_size=1": "grpo.group_size must be a whole number of at least 2",
    "data.path=nowhere.txt": "nowhere.txt",
    "activation_dumper.seq_len=100": "Set activation_dumper.seq_len to 64 or less: the model reads no more tokens",
    "t_text=64": "Set t_text to 61 or less: the model reads 64 tokens, of which the decoder's prompt takes 4; it is 64",
    f"decoder_prompt={'long ' * 20}<embed>": "Shorten decoder_prompt: it has 102 tokens, and the model reads 64",
}


@pytest.mark.parametrize("setting", CASES)
def test_settings(setting: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert CASES[setting] in refused([setting], capfd, tmp_path)


def test_nothing_is_trained(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parts = ("decoder.projection_layer", "decoder.prompt", "encoder.projection_layer")
    off = [f"trainable_components.{part}=false" for part in parts]
    assert "nothing would be trained" in refused(["--preset", "gpt2", *off], capfd, tmp_path)


def test_models(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert "from 0 to 1" in refused([f"model_name={folder}", "layer_l=2", "trainable_components={}"], capfd, tmp_path)
    small = model_folder(tmp_path / "small", vocab_size=100)
    shown = refused([f"model_name={small}", "trainable_components={}"], capfd, tmp_path)
    assert "does not match the model" in shown and "the model knows 100" in shown
    shown = refused([f"model_name={folder}", f"tokenizer_name={tmp_path}", "trainable_components={}"], capfd, tmp_path)
    assert "tokenizer" in shown
    train(tmp_path, "verify", f"model_name={small}", f"tokenizer_name={small}", code=2, name="again")
    short = model_folder(tmp_path / "short", max_position_embeddings=20)
    shown = refused([f"model_name={short}", "activation_dumper.seq_len=21"], capfd, tmp_path)
    assert "Set activation_dumper.seq_len to 20 or less" in shown
    assert not (tmp_path / "runs").exists(), "none of these was recorded as a run"


def test_the_longest_text_is_trained_and_evaluated(tmp_path: Path) -> None:
    """Bytes that are no text become three each when they are read again."""
    found = train(tmp_path, "verify", "t_text=61", "max_steps=1", "evaluation.rows=3", "evaluation.best_of=1")
    assert (found / "artifacts" / "eval" / "results.json").is_file()
