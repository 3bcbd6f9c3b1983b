"""Bad input gets one sentence and exit code 2; nothing is lost or left half done."""

from pathlib import Path

import pytest

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep.core.json_files import JsonLines
from samestep.train.session import session
from samestep.train.session.entry import train_with

pytestmark = pytest.mark.timeout(900)
FAULTY = str(Path(__file__).with_name("faulty.py"))
MDLM = ["train", "mdlm", "--preset", "verify", "--no-log.tensorboard"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["fly"], "no verb 'fly'; choose one of train"),
        (["trian"], "no verb 'trian' (did you mean 'train'?)"),
        (["train", "mdml"], "no recipe 'mdml' (did you mean 'mdlm'?)"),
        (["train", "no_such_package.recipe"], "no recipe 'no_such_package.recipe'"),
        (["train", "nowhere.py"], "nowhere.py does not exist"),
        (["train", "json"], "the module json has no `recipe = Recipe(...)`"),
        (["train", "--epochs", "3"], "needs a recipe first, one of: distill, dpo, gan, lens, mdlm"),
        (["train", "mdlm", "--lr", "1"], "There is no setting 'lr'; did you mean learning_rate?"),
        (["train", "mdlm", "--preset", "huge"], "tiny"),
        (["train", "mdlm", "--backend", "gloo"], "distributed.backend"),
        (["train", "mdlm", "--learning-rte", "1"], "learning_rate"),
        (["train", "mdlm", "batch_size=many"], "batch_size"),
        (["train", "mdlm", "schedule=zigzag"], "cosine"),
        (["train", "mdlm", "--config", "missing.yaml"], "missing.yaml"),
        (["train", "--resume", "nothing"], "is not a run directory; there is no run in runs/ yet"),
        (["train", "mdlm", "--max_time", "soon"], "'soon' is not a duration"),
        ([*MDLM, "--batch_size", "0"], "batch_size must be a whole number of at least 1 or auto, not '0'"),
        (
            [*MDLM, "--global_batch_size", "0"],
            "global_batch_size must be a whole number of at least 1 or null",
        ),
        ([*MDLM, "--data.path", "missing.txt"], "missing.txt"),
        ([*MDLM, "--data.path", "empty.txt"], "empty.txt"),
        ([*MDLM, "--data.path", "short.txt"], "short.txt has 5 tokens"),
        ([*MDLM, "--distributed.device", "cuda"], "not available on this machine"),
        ([*MDLM, "--distributed.backend", "ccl", "--distributed.device", "cpu"], "available: auto"),
        ([*MDLM, "--init_from", "missing.pt"], "missing.pt does not exist"),
        ([*MDLM, "--checkpoint.keep_last", "0"], "keep_last"),
        (["sample", "nothing"], "is not a run directory"),
        (["verify", "mdml"], "did you mean 'mdlm'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_sentence_and_exit_code_2(args: list[str], expected: str, shell: Shell) -> None:
    Path("empty.txt").touch()
    Path("short.txt").write_text("short")
    codes, output = shell(*args)
    assert codes == [2], output
    printed = [line for line in output.splitlines() if line.startswith("samestep: ")]
    assert len(printed) == 1, output
    assert expected in printed[0]
    assert "Traceback" not in output


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_nan_is_skipped_by_all_then_stops_with_step_and_samples(shell: Shell, ranks: int) -> None:
    args = ["--global_batch_size", "5", "--max_bad_steps", "3", "--epochs", "100", "--name", "a", "--log.every", "1"]
    codes, output = shell("train", FAULTY, *args, "--nan_rows", "30", ranks=ranks)
    assert codes == [1] * ranks, output
    assert "not finite for 3 steps in a row, the last at step 3 with 5 rows: " in output
    assert "WARNING: learner 'model': step 1 was skipped, with all 5 rows of its batch: the loss of 5 rows: " in output
    assert "Traceback" not in output


def test_a_few_bad_samples_do_not_end_the_run(shell: Shell) -> None:
    args = ["--global_batch_size", "5", "--epochs", "2", "--name", "a", "--log.every", "1"]
    codes, output = shell("train", FAULTY, *args, "--nan_rows", "1", ranks=2)
    assert codes == [0, 0], output
    rows = list(JsonLines(Path("runs/a/metrics.jsonl")))
    assert sum(row["skipped"] for row in rows) == 2, "the bad sample comes once an epoch"
    assert "skipped 2 steps whose gradient was not finite (2 rows had a loss that was not finite)" in output
    assert all(row["loss"] == row["loss"] for row in rows if "loss" in row), "no NaN reaches a mean"


def test_a_rank_whose_data_raises_ends_all_with_its_message(shell: Shell) -> None:
    codes, output = shell("train", FAULTY, "--global_batch_size", "6", "--broken_row", "7", "--name", "a", ranks=3)
    assert codes == [1, 1, 1]
    assert "row 7 is unreadable" in output
    logs = [Path(f"runs/a/logs/rank_{rank}.log").read_text() for rank in range(3)]
    assert sum("Traceback" in log for log in logs) == 1, "only the rank that failed shows where"


def not_shared(config: dict) -> int:
    session.is_disk_shared = lambda folder, world: False
    return train_with(str(EXAMPLE), config)


def test_a_sharded_run_needs_a_shared_directory(shell: Shell) -> None:
    from samestep.launching import local

    settings = {"max_steps": 2, "distributed": {"strategy": "fsdp"}, "log": {"tensorboard": False}}
    workers = local.start(not_shared, 2, settings, logs=shell.folder / "out")
    assert workers.wait(60) == [2, 2]
    assert "is not seen by all ranks" in workers.output(0)
    settings["distributed"] = {"strategy": "ddp"}
    assert local.start(not_shared, 2, settings, logs=shell.folder / "out2").wait(60) == [0, 0]


def test_a_checkpoint_of_another_model_is_refused(shell: Shell) -> None:
    assert shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--max_steps", "100000", "--max_time", "1s")[0] == [75]
    record = Path("runs/a/config.json")
    record.write_text(record.read_text().replace('"hidden": 4', '"hidden": 5'))
    codes, output = shell("train", "--resume", "a")
    assert codes == [2]
    assert "has shape (4,) instead of (5,)" in output
