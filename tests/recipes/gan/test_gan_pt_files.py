"""generator_step_X.pt and its like: plain weights of both models, the same on any number of ranks and for any sharding.

They are written from checkpoints, which hold all of a run.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

import samestep
from cli.conftest import Shell
from samestep.checkpoint.loading import read_tensors

pytestmark = pytest.mark.timeout(900)
TRAIN = ["train", "gan", "--preset", "verify", "--no-log.tensorboard"]
FILES = {
    f"{model}_{when}.pt" for model in ("generator", "judge") for when in ("step_2", "epoch_1", "step_4", "epoch_2")
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 1 rank, which most tests look at."""
    shell = Shell(tmp_path_factory.mktemp("trained"))
    train(shell, "one", "--checkpoint_freq", "2")
    return shell.folder


@pytest.fixture
def shell(trained: Path, tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def train(shell: Shell, name: str, *args: str, ranks: int = 1) -> str:
    given = ["--out", str(shell.folder), "--run_name", name, "--save_checkpoints", *args]
    codes, output = shell(*TRAIN, *given, ranks=ranks)
    assert codes == [0] * ranks, output
    return output


def weights(file: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(file, weights_only=True)
    return found


def close(one: Path, other: Path, tolerance: float = 0) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(
        torch.allclose(mine[name], theirs[name], rtol=0, atol=tolerance) for name in mine
    )


def test_files_are_the_same_on_any_number_of_ranks(trained: Path, shell: Shell) -> None:
    train(shell, "sharded", "--checkpoint_freq", "2", "--distributed.strategy", "fsdp", ranks=2)
    one, sharded = trained / "one" / "weights", shell.folder / "sharded" / "weights"
    assert set(os.listdir(one)) == set(os.listdir(sharded)) == FILES
    assert all(close(one / file, sharded / file, 1e-9) for file in FILES)
    assert not close(one / "generator_step_2.pt", one / "generator_step_4.pt", 1e-9)


@pytest.mark.parametrize("learner", ["generator", "judge"])
def test_a_file_is_the_state_of_the_network(trained: Path, learner: str) -> None:
    network = samestep.load(trained / "one", 4, learner).network
    found = weights(trained / "one" / "weights" / f"{learner}_step_4.pt")
    assert found.keys() == network.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in network.state_dict().items())


def test_one_checkpoint_holds_both_models_with_their_optimizers(trained: Path) -> None:
    (checkpoint,) = (trained / "one" / "checkpoints" / "gan").glob("step_*4")
    for learner in ("generator", "judge"):
        tensors = read_tensors(checkpoint, f"{learner}/optimizer")
        assert {name.rpartition(".")[2] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
        assert (
            read_tensors(checkpoint, f"{learner}/model").keys()
            == weights(trained / "one" / "weights" / f"{learner}_step_4.pt").keys()
        )


def test_files_hold_float32_and_only_those_that_were_asked_for(shell: Shell) -> None:
    """One step is an epoch here; without --checkpoint_freq there are files of epochs, and of the last step."""
    precision = ["--distributed.dtype=float32", "--distributed.mixed_precision=bf16"]
    train(shell, "a", "--data.limit=6", "--max_steps=2", "--checkpoint_freq=0", *precision)
    files = {f"{model}_{when}.pt" for model in ("generator", "judge") for when in ("epoch_1", "epoch_2", "step_2")}
    assert set(os.listdir(shell.folder / "a" / "weights")) == files
    for file in files:
        assert {tensor.dtype for tensor in weights(shell.folder / "a" / "weights" / file).values()} == {torch.float32}


def test_another_run_begins_with_them_each_model_with_its_own(trained: Path, shell: Shell) -> None:
    files, begun = trained / "one" / "weights", shell.folder / "swapped" / "weights"
    first = [f"generator.init_from={files / 'judge_step_4.pt'}", f"judge.init_from={files / 'generator_step_4.pt'}"]
    train(shell, "swapped", *first, "--max_steps=1", "--learning_rate=0")
    assert close(begun / "generator_step_1.pt", files / "judge_step_4.pt")
    assert close(begun / "judge_step_1.pt", files / "generator_step_4.pt")


def test_after_the_warm_up_the_generator_begins_with_what_that_learned(trained: Path, shell: Shell) -> None:
    file = trained / "one" / "weights" / "generator_step_2.pt"
    output = train(shell, "a", f"generator.init_from={file}", "--mle_epochs=1", "--max_steps=1")
    assert "first weights of generator  stage 'mle', step_00000002" in output
    assert (shell.folder / "a" / "weights" / "mle" / "generator_epoch_1.pt").exists()
    assert (shell.folder / "a" / "weights" / "gan" / "judge_step_1.pt").exists()


def test_no_epochs_are_refused(shell: Shell) -> None:
    args = ["--out", str(shell.folder), "--epochs", "0", "--max_steps", "null"]
    codes, output = shell(*TRAIN, *args, ranks=2)
    assert codes == [2, 2]
    assert "epochs must be a whole number of at least 1, not '0'" in output
