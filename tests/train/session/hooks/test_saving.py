"""Saves of a real run during its training: failures, weight files, and histories that have each step once."""

import errno
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep.checkpoint import commit as commit_module
from samestep.checkpoint.commit import make_empty_folder
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import STAGING, find_checkpoints, read_manifest, verify
from samestep.cli.main import main
from samestep.core.json_files import JsonLines, read_json
from samestep.launching.local import start
from samestep.train.session import stage_run

pytestmark = pytest.mark.timeout(900)
EVERY = ["--checkpoint.every_steps", "2", "--checkpoint.keep_last", "9"]
RUN = ["train", str(EXAMPLE), *SMALL, *EVERY, "--name", "a"]
CHECKPOINTS = Path("runs/a/checkpoints/fit")


def with_failures(args: Sequence[str], steps: Sequence[int], times: int) -> int:
    """Run a command whose saves of some steps fail the first so many times, as on a full disk."""
    left = dict.fromkeys((f"{STAGING}step_{step:08d}" for step in steps), times)

    def make_or_fail(folder: Path) -> None:
        make_empty_folder(folder)
        if left.get(folder.name, 0) > 0:
            left[folder.name] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")

    commit_module.make_empty_folder = make_or_fail
    return main(args)


def failing(
    args: Sequence[str], steps: Sequence[int], times: int, ranks: int = 2, env: dict[str, str] | None = None
) -> tuple[Sequence[int | None], str, str]:
    preload = ["samestep.train.session.session"]
    workers = start(with_failures, ranks, args, steps, times, logs=Path("failing"), env=env, preload=preload)
    codes = workers.wait(60)
    return codes, workers.output(0), workers.output(ranks - 1)


def logged_metrics(run: str) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in JsonLines(Path(run, "metrics.jsonl"))]


def steps() -> list[int]:
    return [found.step for found in find_checkpoints(CHECKPOINTS)]


def events(kind: str) -> list[int]:
    return [row["step"] for row in JsonLines(Path("runs/a/events.jsonl")) if row["kind"] == kind]


def test_a_failed_save_is_reported_and_training_goes_on(shell: Shell) -> None:
    codes, output, other = failing([*RUN, "--checkpoint.weights"], [2, 6], times=1)
    assert codes == [0, 0], output
    sentence = "step_00000002 failed on rank 0: OSError: [Errno 28] No space left on device; training goes on"
    assert output.count(sentence) == 1
    assert "failed on rank 0" not in other, "only rank 0 prints it"
    assert steps() == [4, 8]
    assert events("save_failed") == [2, 6]
    assert events("save") == [4, 8]
    assert sorted(os.listdir("runs/a/weights")) == ["model_step_4.pt", "model_step_8.pt"], "none of what was not saved"
    for step in (4, 8):
        weights = torch.load(f"runs/a/weights/model_step_{step}.pt", weights_only=True)
        saved = read_tensors(CHECKPOINTS / f"step_0000000{step}", "model/model")
        assert weights.keys() == saved.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())
    assert not list(CHECKPOINTS.glob(".*"))


def test_too_many_failures_stop_the_run_which_can_be_resumed(shell: Shell) -> None:
    codes, output, _ = failing([*RUN, "--checkpoint.max_failures", "2"], [4, 6], times=9)
    assert codes == [1, 1]
    assert "step_00000006 failed on rank 0: OSError: [Errno 28] No space left on device (2 failures in a row)" in output
    assert "start the run again to resume" in output
    assert steps() == [2]
    assert shell("train", "--resume", "a", ranks=2)[0] == [0, 0]
    assert steps() == [2, 4, 6, 8]
    uninterrupted = [arg if arg != "a" else "uninterrupted" for arg in RUN]
    assert shell(*uninterrupted, ranks=2)[0] == [0, 0]
    assert logged_metrics("runs/a") == logged_metrics("runs/uninterrupted")
    one, other = (
        read_manifest(Path(f"runs/{name}/checkpoints/fit/step_00000008")).files["__0_0.distcp"]
        for name in ("a", "uninterrupted")
    )
    assert one == other, "bit for bit"


def test_the_last_save_is_tried_again(shell: Shell) -> None:
    codes, output, _ = failing(RUN, [8], times=1)
    assert codes == [0, 0], output
    assert "step_00000008 failed on rank 0" in output
    assert read_json(Path("runs/a/status.json"))["status"] == "done"
    assert steps() == [2, 4, 6, 8]


def test_without_its_last_save_a_run_is_not_done(shell: Shell) -> None:
    codes, output, _ = failing([*RUN, "--checkpoint.max_failures", "1"], [8], times=9, ranks=1)
    assert codes == [1]
    assert "step_00000008 failed on rank 0: OSError: [Errno 28] No space left on device; earlier checkpoints" in output
    assert read_json(Path("runs/a/status.json"))["status"] != "done"
    assert not Path("runs/a/artifacts/fit/done.json").exists()


def test_saves_in_the_background_and_in_the_foreground_are_the_same(shell: Shell) -> None:
    for name, flag in (("a", "--checkpoint.background"), ("b", "--no-checkpoint.background")):
        assert shell(*RUN[:-1], name, flag, ranks=2)[0] == [0, 0]
    for step in (2, 4, 6, 8):
        one, other = (
            read_manifest(Path(f"runs/{name}/checkpoints/fit/step_0000000{step}")).files for name in ("a", "b")
        )
        assert one.keys() == other.keys()
        assert {n: r for n, r in one.items() if "distcp" in n} == {n: r for n, r in other.items() if "distcp" in n}
        assert verify(CHECKPOINTS / f"step_0000000{step}") is None


def killed_at(args: Sequence[str], step: int, phase: str) -> int:
    """Run a command that dies of SIGKILL when the save of a step has come to a phase."""
    store = stage_run.Store

    class Deadly(store):
        def commit(self, snapshot, files):  # type: ignore[no-untyped-def]
            self._on_phase = lambda reached: (
                os.kill(os.getpid(), signal.SIGKILL) if (snapshot.step, reached) == (step, phase) else None
            )
            return super().commit(snapshot, files)

    stage_run.Store = Deadly  # type: ignore[misc]
    return main(args)


def records_of_wandb(path: Path) -> Iterator[bytes]:
    """The records in a file of W&B: a preamble, then blocks of pieces (checksum, length, kind), as LevelDB's logs. They
    are read once nothing is added any more: a run's `finish` may return before its last records are on the disk."""
    data = b""
    while len(data) != path.stat().st_size:
        data = path.read_bytes()
        time.sleep(1.0)
    block, head = 32768, 7
    at, record = 7, b""
    while at + head <= len(data):
        if block - at % block < head:  # a head is never cut in two
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + head])
        at += head + length
        if kind == 0 or at > len(data):  # here the writer was killed
            return
        record += data[at - length : at]
        if kind in (1, 4):  # the only piece of a record, or its last one
            yield record
            record = b""


def sent_to_wandb(run: Path) -> list[tuple[int, bool]]:
    """Step and kind of every row in W&B's own files, over all launches."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for text in records_of_wandb(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(text)
            row = {item.nested_key[0]: item.value_json for item in record.history.item}
            if row:
                rows.append((int(row["fit/step"]), "fit/loss" in row))
    return rows


def test_every_history_has_each_step_once_however_often_the_run_is_killed(shell: Shell) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    args = [*RUN, "--log.wandb", "--log.tensorboard", "--max_steps", "12", "--validate_every", "3"]
    codes, output, _ = failing([*args, "--checkpoint.max_failures", "1"], [4], times=1, ranks=1, env=env)
    assert codes == [1], "stopped in good order, with rows beyond its last checkpoint"
    assert sorted(sent_to_wandb(Path("runs/a"))) == [(1, True), (2, True)], "what the checkpoint covers, and no more"
    for step, phase in ((8, "renamed"), (12, "manifest")):
        workers = start(killed_at, 1, args, step, phase, logs=Path(f"at_{step}"), env=env, preload=["wandb"])
        assert workers.wait(60) == [-signal.SIGKILL], workers.output(0)
    codes, output = shell(*args, env=env)
    assert codes == [0], output
    expected = [(step, True) for step in range(1, 13)] + [(step, False) for step in (3, 6, 9, 12)]
    written = [(row["step"], "loss" in row) for row in logged_metrics("runs/a")]
    assert sorted(written) == sorted(expected)
    board = EventAccumulator("runs/a/tensorboard/fit").Reload()
    assert [event.step for event in board.Scalars("loss")] == list(range(1, 13))
    assert [event.step for event in board.Scalars("val/error")] == [3, 6, 9, 12]
    errors = {event.step: event.value for event in board.Scalars("val/error")}
    bests = [(step, value) for step, value in errors.items() if value == min(errors[s] for s in errors if s <= step)]
    assert [(event.step, event.value) for event in board.Scalars("best/val/error")] == bests
    sent = sent_to_wandb(Path("runs/a"))
    assert sorted(sent) == sorted(expected)
    assert len(sent) == read_json(Path("runs/a/wandb.json"))["rows"]
    assert len(list(Path("runs/a/wandb").glob("*offline-run-*"))) == 4
    assert len(list(Path("runs/a/wandb").glob("killed-offline-run-*"))) == 2
