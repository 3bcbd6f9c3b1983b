"""Samples at Weights & Biases go with the rows that a checkpoint covers, each once, also after a kill."""

import json
from pathlib import Path

import pytest
import torch

from samestep import samples
from samestep.core.rundir import RunDir
from samestep.train.logging.sample_log import SampleLog
from samestep.train.logging.sinks import JsonSink, WandbSink
from samestep.train.record.config import Config
from train.session.hooks.test_saving import records_of_wandb

pytestmark = pytest.mark.usefixtures("own_wandb")


def launch(run: RunDir, step: int, *, until: int) -> WandbSink:
    """A launch that resumes after `step`: a note before the row of each second step."""
    log, metrics = SampleLog(run, "fit", step, 4), JsonSink(run, "fit", step)
    sink = WandbSink(run, "fit", Config(), {})
    log.sinks = [sink]
    for now in range(step + 2, until + 1, 2):
        log.write(now - 1, "note", [f"<{now}>", samples.Text("b", "p")])
        if now == 4:
            log.write(4, "square", [samples.Image(torch.zeros(4, 5, 3))])
        for each in (metrics, sink):
            each.write(now, 0, {"loss": 1.0})
    return sink


def test_samples_wait_for_a_checkpoint_and_are_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = RunDir(tmp_path)
    first = launch(run, 0, until=6)
    first.committed(4)
    first._run.finish()  # killed: its folder may lack rows, and all are sent again
    second = launch(run, 4, until=8)
    second.committed(8)
    second.write_samples([{"stage": "fit", "step": 8, "name": "end", "kind": "text", "prompt": "", "text": "."}])
    second.close()
    assert json.loads((tmp_path / "wandb.json").read_text())["samples"] == len(run.samples.read_text().splitlines()) + 1
    found: dict[str, set[str]] = {}
    for row in sent(tmp_path):
        found.setdefault(row["fit/step"], set()).update(name for name in row if name[4:] in ("note", "square", "end"))
    note = {"fit/note"}
    assert found == {"2": note, "4": {*note, "fit/square"}, "6": note, "8": {*note, "fit/end"}}
    tables = [json.loads(path.read_text()) for path in tmp_path.glob("wandb/offline-*/files/media/**/note_*.json")]
    assert sorted(table["data"][0] for table in tables) == [["", f"<{step}>"] for step in (2, 4, 6, 8)]
    assert tables[0]["columns"] == ["prompt", "text"] and tables[0]["data"][1] == ["p", "b"]


def sent(run: Path) -> list[dict[str, str]]:
    from wandb.proto import wandb_internal_pb2

    rows = []
    for path in run.glob("wandb/offline-run-*/*.wandb"):
        for text in records_of_wandb(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(text)
            rows.append({item.nested_key[0]: item.value_json for item in record.history.item})
    return [row for row in rows if row]
