"""A resume goes on with the data that the run was started on, or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Shell
from samestep.core.json_files import JsonLines, read_json, write_json
from train.resumed_line import ARGS, LOSS, SOURCE

pytestmark = pytest.mark.timeout(900)
FAILS = {"FAILS_AT": "5"}
RUN = Path("runs/a")
MDLM = [
    *("train", "mdlm", "--preset", "verify", "--name", "a", "--max_steps", "100000", "--max_time", "1s"),
    *("--log.samples", "0", "--no-log.tensorboard", "--data.sequence_length", "16", "--data.limit", "null"),
]


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "line.py").write_text(SOURCE)
    (shell.folder / "line_loss.py").write_text(LOSS)
    write_rows(40, "rows.json")
    write_rows(11, "held.json")
    return shell


def write_rows(count: int, name: str, **changed: Any) -> None:
    rows = [{"x": float(i), "y": 2.0 * i} for i in range(count)]
    rows[3] |= changed
    Path(name).write_text(json.dumps(rows))


def interrupted(shell: Shell, *args: str, ranks: int = 1) -> None:
    assert shell(*ARGS, *args, ranks=ranks, env=FAILS)[0] == [1] * ranks


def refused(shell: Shell, sentence: str, *args: str, ranks: int = 1) -> None:
    workers = shell.start("train", "--resume", "a", *args, ranks=ranks)
    assert workers.wait(60) == [2] * ranks, workers.output(0)
    assert sentence in workers.output(0) and "Traceback" not in workers.output(0), workers.output(0)
    for rank in range(ranks):
        assert read_json(RUN / "watch" / f"rank_{rank}_exit.json")["text"] in workers.output(0)


def log() -> str:
    return (RUN / "logs" / "rank_0.log").read_text()


def steps() -> list[int]:
    return [row["step"] for row in JsonLines(RUN / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_training_rows_are_refused_and_the_old_ones_go_on(shell: Shell, ranks: int) -> None:
    interrupted(shell, ranks=ranks)
    before = steps()
    write_rows(40, "rows.json", y=7.0)
    sentence = (
        "the training data of stage 'fit' has changed since this run was started (rows differ among the 40 that were "
        "compared); restore the data, or start a new run (init_from="
    )
    refused(shell, sentence, ranks=ranks)
    assert steps() == before, "a refusal leaves the run as it is"
    write_rows(40, "rows.json")
    assert shell("train", "--resume", "a", ranks=ranks)[0] == [0] * ranks
    assert steps() == list(range(1, 9))


def test_validation_rows_are_compared_too(shell: Shell) -> None:
    interrupted(shell)
    write_rows(11, "held.json", x=0.5)
    refused(shell, "the validation data of stage 'fit' has changed")
    write_rows(12, "held.json")
    refused(shell, "(it has 12 rows now, and had 11)")
    write_rows(11, "held.json")
    write_rows(41, "rows.json")
    refused(shell, "this run was started on 40 training samples but the data now has 41")


@pytest.mark.parametrize(("augment", "workers"), [("torch", "0"), ("generator", "1")])
def test_rows_that_draw_random_numbers_are_refused_at_the_first_launch(
    shell: Shell, augment: str, workers: str
) -> None:
    started = shell.start(*ARGS, "--augment", augment, "--num_workers", workers, ranks=2)
    assert started.wait(60) == [2, 2], started.output(0)
    drawn = {"torch": "torch's default generator", "generator": "its own generator `Rows.random`"}[augment]
    sentence = f"the training data of stage 'fit' is random: reading a row draws from {drawn}, so it would depend on"
    assert sentence in started.output(0) and "Traceback" not in started.output(0)
    assert "keyed_random=True" in started.output(0) and not RUN.exists()


def test_rows_whose_random_numbers_are_keyed_are_the_same_after_a_resume(shell: Shell) -> None:
    keyed = ("--augment", "keyed")
    interrupted(shell, *keyed)
    assert shell("train", "--resume", "a", ranks=2)[0] == [0, 0]
    assert shell(*ARGS, "--name", "whole", *keyed)[0] == [0]
    resumed, whole = (
        [row["loss"] for row in JsonLines(Path("runs") / name / "metrics.jsonl") if "loss" in row]
        for name in ("a", "whole")
    )
    assert resumed == pytest.approx(whole, rel=1e-5) and len(whole) == 8


def test_loader_processes_see_the_same_data(shell: Shell) -> None:
    interrupted(shell)
    assert shell("train", "--resume", "a", "--num_workers", "2", env={"FAILS_AT": "7"})[0] == [1]
    assert "step 7 failed" in log()
    write_rows(40, "rows.json", x=-1.0)
    refused(shell, "the training data of stage 'fit' has changed", "--num_workers", "2")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_row_that_cannot_be_read_fails_as_in_training(shell: Shell, workers: str) -> None:
    write_rows(40, "rows.json", x="unreadable")
    started = shell.start(*ARGS, "--num_workers", workers, ranks=2)
    assert started.wait(60) == [1, 1]
    assert "row 3 cannot be read" in started.output(0) and "Traceback" in started.output(0)
    text = read_json(RUN / "watch" / "rank_1_exit.json")["text"]
    assert "failed: OSError" in text and "row 3 cannot be read" in text


def test_a_run_of_an_older_version_resumes_and_is_compared_from_then_on(shell: Shell) -> None:
    interrupted(shell)
    frozen = read_json(RUN / "first_launch.json")
    del frozen["fit"]["data"]
    write_json(RUN / "first_launch.json", frozen)
    write_rows(40, "rows.json", y=7.0)
    codes, output = shell("train", "--resume", "a", env={"FAILS_AT": "7"})
    assert codes == [1] and "fingerprint" not in output
    assert log().count("INFO samestep.train.api.stage_feeds: the training data of stage 'fit' had no fingerprint") == 1
    write_rows(40, "rows.json")
    refused(shell, "the training data of stage 'fit' has changed")


def test_a_first_launch_reports_nothing(shell: Shell) -> None:
    assert shell(*ARGS)[0] == [0]
    assert "fingerprint" not in log()
    data = read_json(RUN / "first_launch.json")["fit"]["data"]
    assert [data[purpose][0]["rows"] for purpose in ("training", "validation")] == [40, 11]


def started_mdlm(shell: Shell, path: str, ranks: int = 1) -> None:
    codes, output = shell(*MDLM, f"--data.path={path}", ranks=ranks)
    assert codes == [75] * ranks, output


def file_records(purpose: str) -> list[dict]:
    frozen = read_json(RUN / "first_launch.json")
    return frozen[next(iter(frozen))]["data"][purpose][0]["files"]


def resumes(shell: Shell) -> None:
    codes, output = shell("train", "--resume", "a", "max_time=0.3s")
    assert codes == [75], output


def move_time(path: Path, seconds: int) -> None:
    """Another time of change, however coarse the disk's clock is."""
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + seconds * 10**9))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_text_file_that_changed_at_equal_length_is_refused(shell: Shell, ranks: int) -> None:
    text = Path("text.txt")
    text.write_text("All that is gold does not glitter.\n" * 60)
    started_mdlm(shell, "text.txt", ranks)
    move_time(text, 5)
    resumes(shell)
    assert file_records("training")[0]["mtime_ns"] == text.stat().st_mtime_ns, "the new time is on record"
    text.write_text(text.read_text().replace("gold", "cold", 1))
    move_time(text, 10)
    refused(
        shell,
        "the training data of stage 'pretrain' has changed since this run was started (the content of text.txt has",
    )
    text.write_text("All that is gold does not glitter.\n" * 60)
    resumes(shell)


def test_a_shard_of_a_prepared_folder_with_one_other_byte_is_refused(shell: Shell) -> None:
    Path("text.txt").write_text("Not all those who wander are lost.\n" * 200)
    assert shell("data", "prepare", "text.txt", "--out", "tokens", "--shard_bytes", "4000")[0] == [0]
    started_mdlm(shell, "tokens")
    shards = {record["file"]: record for record in read_json(Path("tokens/metadata.json"))["shards"]["train"]}
    assert {r["name"]: r["sha256"] for r in file_records("training")} == {n: r["sha256"] for n, r in shards.items()}
    shard = Path("tokens/train-00001.bin")
    move_time(shard, 5)
    resumes(shell)
    content = bytearray(shard.read_bytes())
    content[1234] ^= 1
    shard.write_bytes(content)
    move_time(shard, 10)
    refused(shell, "(the content of train-00001.bin has changed)")


def test_text_in_memory_is_fingerprinted_in_full(shell: Shell) -> None:
    codes, output = shell(*MDLM, "data.limit=2000")
    assert codes == [75], output
    assert [record["size"] for record in file_records("training")] == [1800]
    assert [record["size"] for record in file_records("validation")] == [200]
    resumes(shell)
