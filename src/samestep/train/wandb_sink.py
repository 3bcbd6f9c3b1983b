"""Weights & Biases, with each row once however often the run is killed.

What was sent cannot be taken back, so a row waits until a checkpoint covers it: only then it is certain not to come
again. And what was sent may still be lost with the process. metrics.jsonl loses nothing, so at every start whatever
rows W&B does not have are sent from there. A row's number in that file is its step at W&B, so rows can be counted.
"""

import logging
import secrets
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.records import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.train.config import Config

logger = logging.getLogger(__name__)
_BLOCK, _HEAD, _PREAMBLE = 32768, 7, 7
_LAST_PARTS = (1, 4)
Row = Mapping[str, Any]


class WandbSink:
    """A run at W&B, under the same id after a resume. Opened after metrics.jsonl was cut back to the checkpoint."""

    def __init__(self, rundir: RunDir, stage: str, config: Config, data: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb=true needs the package wandb: pip install 'samestep[wandb]'") from None
        note = rundir.path / "wandb.json"
        run_id = (read_json(note) or {}).get("id") or secrets.token_hex(4)
        write_json(note, {"id": run_id})
        recorded = rows_recorded(rundir.path / "wandb", run_id)
        self._run = wandb.init(
            project=config.log.wandb_project,
            name=rundir.path.name,
            id=run_id,
            resume="allow",
            dir=str(rundir.path),
            config=dict(data),
        )
        self._stage = stage
        self._known = recorded if self._run.offline else self._run.step
        self._stages: set[str] = set()
        self._number = 0
        self._waiting: list[tuple[int, Row]] = []
        for row in JsonLines(rundir.metrics):
            self._send(self._take_number(), row)

    def write(self, step: int, epoch: int, figures: Mapping[str, float]) -> None:
        """Keep the row until a checkpoint covers it."""
        self._waiting.append((self._take_number(), {"stage": self._stage, "step": step, "epoch": epoch, **figures}))

    def flush(self) -> None:
        """What waits is in metrics.jsonl too."""

    def committed(self, step: int) -> None:
        """Send what the checkpoint covers."""
        while self._waiting and self._waiting[0][1]["step"] <= step:
            self._send(*self._waiting.pop(0))

    def close(self) -> None:
        """End the run; rows that no checkpoint covers are never sent."""
        self._run.finish()

    def _take_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _send(self, number: int, row: Row) -> None:
        """One row with its stage's own step, so that stages do not collide; not if W&B has it already."""
        if number < self._known:
            return
        stage = row["stage"]
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self._run.log({f"{stage}/{name}": value for name, value in row.items() if name != "stage"}, step=number)


def rows_recorded(folder: Path, run_id: str) -> int:
    """How many rows the files of a run's earlier launches hold: W&B writes them in blocks, so a kill loses the last."""
    known = 0
    for path in sorted(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb")):
        try:
            known = max([known, *(step + 1 for step in _steps(path.read_bytes()))])
        except Exception as error:  # somebody else's format, which may change: that must not end a run
            logger.warning("cannot tell which rows %s holds (%s), so they may come twice", path, error)
    return known


def _steps(data: bytes) -> Iterator[int]:
    """The steps of the rows in a file of W&B."""
    from wandb.proto import wandb_internal_pb2

    for text in _records(data):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(text)
        for item in record.history.item:
            if "_step" in (item.key, *item.nested_key):
                yield int(item.value_json)


def _records(data: bytes) -> Iterator[bytes]:
    """The records in a file of W&B: a preamble, then blocks of pieces (checksum, length, kind), as LevelDB's logs."""
    at, record = _PREAMBLE, b""
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:  # a head is never cut in two
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        at += _HEAD + length
        if kind == 0 or at > len(data):  # here the writer was killed
            return
        record += data[at - length : at]
        if kind in _LAST_PARTS:
            yield record
            record = b""
