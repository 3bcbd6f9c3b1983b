"""The recipe mdlm as its users run it: their flags, their files, chats of their own."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.cli.main import main
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)
SMALL = ["--preset=verify", "--distributed.dtype=float32", "--no-log.tensorboard", "--sampling.max_new_tokens=4"]
LABELS = ("dataset", "model", "batch size per GPU", "total batch size", "epochs", "learning rate", "save directory")
LABELS += ("number of GPUs", "parameters", "mixed precision")


def chats(folder: Path, tokenizer: str = "char") -> Path:
    """Forty questions with answers, prepared as characters or for a model."""
    rows = [{"prompt": f"{a} + {b}?", "answer": f"{a + b}."} for a in range(5) for b in range(8)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["--out", str(folder / "chats"), "--tokenizer", tokenizer, "--sequence_length", "40"]
    assert main(["data", "prepare", str(folder / "chats.jsonl"), *args]) == 0
    return folder / "chats"


def test_answers_to_chats_are_learned_and_a_run_goes_on_from_its_file(shell: Shell) -> None:
    data = chats(shell.folder)
    flags = ["--data_dir", str(data), "--data.limit=null", "--save_dir", "out", "--epochs", "2", "--batch_size", "3"]
    args = ["train", "mdlm", *SMALL, *flags, "--learning_rate", "1e-3", "--no_fp16", "--pt_checkpoints"]
    codes, output = shell(*args, "--name", "a", "--ema_decay=0.9")
    assert codes == [0], output
    found = [line.split("  ")[0] for line in output.splitlines() if "  " in line]
    assert [found.count(label) for label in (*LABELS, "padding")] == [1] * (len(LABELS) + 1), output
    assert "prompt:\nuser\n\n" in output
    run = Path("out/a")
    vocabulary = read_json(data / "metadata.json")["vocab_size"]
    assert read_json(run / "config.json")["config"]["model"]["vocab_size"] == vocabulary
    assert (run / "artifacts" / "sft" / "tokenizer").is_dir()
    first, last = (torch.load(run / f"checkpoint_epoch_{epoch}.pt", weights_only=True) for epoch in (1, 2))
    assert (last["epoch"], last["vocab_size"], len(last["val_losses"])) == (2, vocabulary, 2)
    codes, output = shell(*args, "--name", "b", "--resume", str(run / "checkpoint_epoch_1.pt"))
    assert codes == [0], output
    again = torch.load("out/b/checkpoint_epoch_2.pt", weights_only=True)
    assert all(torch.equal(again["model_state_dict"][name], value) for name, value in last["model_state_dict"].items())
    assert again["train_losses"] == last["train_losses"]
    assert first["train_losses"] == last["train_losses"][:1]


def test_another_run_begins_with_the_network_of_the_first_and_refuses_other_tokens(shell: Shell) -> None:
    flags = ["--max_steps=1", "--log.samples=0"]
    assert shell("train", "mdlm", *SMALL, *flags, "--model.d_model=24", "--name", "a")[0] == [0]
    assert shell("train", "mdlm", *SMALL, *flags, "--model_name", "runs/a", "--name", "b")[0] == [0]
    assert read_json(Path("runs/b/config.json"))["config"]["model"]["d_model"] == 24
    data = chats(shell.folder)
    codes, output = shell("train", "mdlm", *SMALL, *flags, "--model_name", "runs/a", "--data_dir", str(data))
    assert codes == [2]
    assert "has other tokens than runs/a; prepare the text with the model's tokenizer" in output


def test_chats_for_a_published_model_name_it_in_the_next_command_which_works_as_typed(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max_steps=1", "--log.samples=0"]
    assert shell("train", "mdlm", *SMALL, *flags, "--name", "a")[0] == [0]
    assert main(["export", "a", "my model"]) == 0
    Path("my model/sampling.json").unlink()
    data = chats(shell.folder, "my model")
    _, _, command = capsys.readouterr().out.strip().rpartition("next: ")
    assert shlex.split(command) == shlex.split(
        f"samestep train mdlm --data_dir {data} --preset llada-8b --model_name 'my model'"
    )
    codes, output = shell(*shlex.split(command)[1:], "--batch_size", "1", *flags, "--name", "b")
    assert codes == [0], output
    assert re.search(r"total batch size +1\b", output), "no more than what was typed"
    (Path("my model") / "model.safetensors").unlink()
    assert main(["data", "prepare", "chats.jsonl", "--tokenizer", "my model", "--sequence_length", "40"]) == 0
    assert capsys.readouterr().out.strip().endswith("--data_dir chats_processed"), "there is no model to begin with"
