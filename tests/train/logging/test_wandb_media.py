"""Texts and images at Weights & Biases go with the rows that a checkpoint covers."""

from pathlib import Path

import numpy as np
import pytest

from samestep.core.rundir import RunDir
from samestep.train.logging.sinks import WandbSink
from samestep.train.record.config import Config
from train.session.hooks.test_saving import records_of_wandb


def test_media_wait_for_a_checkpoint_like_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    sink = WandbSink(RunDir(tmp_path), "fit", Config(), {})
    for step in (2, 4, 6):
        sink.write_text(step - 1, "note", f"<{step}>")
        sink.write(step, 0, {"loss": 1.0})
    sink.write_image(4, "square", np.zeros((4, 5, 3), np.uint8))
    sink.committed(4)
    sink.write_text(4, "end", "of what the checkpoint covers")
    sink.close()
    rows = {}
    for row in sent(tmp_path):
        rows.setdefault(row["fit/step"], set()).update(row)
    assert {step: {name for name in row if name[4:] in ("note", "square", "end")} for step, row in rows.items()} == {
        "2": {"fit/note"},
        "4": {"fit/note", "fit/square", "fit/end"},
    }
    files = {path.suffix: path for path in tmp_path.glob("wandb/offline-run-*/files/media/**/*.*")}
    assert set(files) == {".html", ".png"}
    notes = [path.read_text() for path in files[".html"].parent.glob("note_*")]
    assert sorted(text.partition("<pre>")[2] for text in notes) == ["&lt;2&gt;</pre>", "&lt;4&gt;</pre>"]


def sent(run: Path) -> list[dict[str, str]]:
    from wandb.proto import wandb_internal_pb2

    rows = []
    for path in run.glob("wandb/offline-run-*/*.wandb"):
        for text in records_of_wandb(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(text)
            rows.append({item.nested_key[0]: item.value_json for item in record.history.item})
    return [row for row in rows if row]
