"""Where rank 0 writes metrics: JSON lines always, TensorBoard by default, Weights & Biases when asked for.

A metric has the same name everywhere. Its stage is a field of a row, a folder of TensorBoard, and at W&B, where all
stages share one run, what the name begins with. After a resume, rows after the checkpoint are cut off first, so each
step is written once.
"""

import secrets
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_object, write_json
from samestep.core.pages.html import png_size
from samestep.core.rundir import RunDir
from samestep.train.logging.hparams import hparams_summary
from samestep.train.logging.metrics import MetricValues
from samestep.train.record.config import Config
from samestep.train.record.samples import as_cells, as_text

Row = Mapping[str, Any]


class Sink(Protocol):
    """A place to write metrics to."""

    def write(self, step: int, epoch: int, metrics: MetricValues) -> None:
        """Write the metrics after `step` steps."""

    def write_best(self, step: int, name: str, value: float) -> None:
        """After `step` steps a metric had its best value so far. It is written by `write` as well."""

    def write_samples(self, rows: Sequence[Row]) -> None:
        """Write samples of one name and step, as samples.jsonl has them."""

    def flush(self) -> None:
        """Bring what was written so far to the disk: a run resumed from the next checkpoint will not write it again."""

    def committed(self, step: int) -> None:
        """A checkpoint after `step` steps is on the disk: nothing up to there will be written again."""

    def close(self) -> None:
        """Write out what is pending."""


class JsonSink:
    """metrics.jsonl."""

    def __init__(self, rundir: RunDir, stage: str, step: int) -> None:
        self._stage = stage
        self._lines = JsonLines(rundir.metrics)
        self._lines.keep(lambda row: row["stage"] != stage or row["step"] <= step)

    def write(self, step: int, epoch: int, metrics: MetricValues) -> None:
        self._lines.append({"stage": self._stage, "step": step, "epoch": epoch, **metrics})

    def write_best(self, step: int, name: str, value: float) -> None:
        """It is among the events of the run."""

    def write_samples(self, rows: Sequence[Row]) -> None:
        """Rows of metrics hold numbers alone."""

    def flush(self) -> None:
        """Every row is flushed as it is written."""

    def committed(self, step: int) -> None:
        """Rows beyond the checkpoint are cut when the run is resumed."""

    def close(self) -> None:
        self._lines.close()


class TensorBoardSink:
    """TensorBoard events; `purge_step` makes older events from that step on void."""

    def __init__(self, rundir: RunDir, stage: str, step: int, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = rundir.path
        self._writer = SummaryWriter(str(rundir.tensorboard / stage), purge_step=step + 1)
        self._writer.file_writer.add_summary(hparams_summary(settings))

    def write(self, step: int, epoch: int, metrics: MetricValues) -> None:
        """One scalar per metric, all in one event: each event wakes the writer's thread, which the loop waits for."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.file_writer.add_summary(Summary(value=values), step)

    def write_best(self, step: int, name: str, value: float) -> None:
        """A curve of its own, because the HParams tab shows the last value of a curve."""
        self._writer.add_scalar(f"best/{name}", value, step)

    def write_samples(self, rows: Sequence[Row]) -> None:
        """Pictures under Images, all else under Text, as it is and not as Markdown."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        name, step = rows[0]["name"], rows[0]["step"]
        texts = [as_text(row) for row in rows if "image" not in row]
        if texts:
            lines = "\n\n".join(texts).splitlines()
            self._writer.add_text(name, "\n".join(f"    {line}" for line in lines), step)
        for number, row in enumerate(row for row in rows if "image" in row):
            content = (self._run / row["image"]).read_bytes()
            width, height = png_size(content)
            picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
            value = Summary.Value(tag=f"{name}/{number}" if number else name, image=picture)
            self._writer.file_writer.add_summary(Summary(value=[value]), step)

    def flush(self) -> None:
        """Write out what is queued."""
        self._writer.flush()

    def committed(self, step: int) -> None:
        """Events beyond the checkpoint are void when the run is resumed."""

    def close(self) -> None:
        """Write out what is queued."""
        self._writer.close()


class WandbSink:
    """A run at Weights & Biases, under the same id after a resume. It is opened after metrics.jsonl was cut back.

    What was sent cannot be taken back, so a row waits until a checkpoint covers it: only then is it certain that no
    resume writes it again. A row's number in metrics.jsonl is its step at W&B, so every start sends what W&B lacks.
    With a server W&B knows how many rows it has. Offline, a killed launch leaves a file that may lack its last rows:
    its folder is renamed, and its rows are sent again.

    Samples wait as well, and go with the next row of metrics of their stage. They are read again from samples.jsonl as
    the rows are from metrics.jsonl; the state counts those that the end of a launch sent without a row.
    """

    def __init__(
        self,
        rundir: RunDir,
        stage: str,
        config: Config,
        data: Mapping[str, Any],
        bests: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """`data`: the settings. `bests`: by stage the metric that its best value is of, and `min` or `max`."""
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb=true needs the package wandb: pip install 'samestep[wandb]'") from None
        self._state_file = rundir.path / "wandb.json"
        state = read_object(self._state_file)
        self._id = state.get("id") or secrets.token_hex(4)
        self._finished: list[str] = state.get("finished", [])
        write_json(self._state_file, {**state, "id": self._id})
        _rename_killed(rundir, self._id, self._finished)
        try:
            self._run = wandb.init(
                project=config.log.wandb_project,
                name=rundir.path.name,
                id=self._id,
                resume="allow",
                dir=str(rundir.path),
                config=dict(data),
                # W&B would note the command line as typed, with what is left out of the settings, and home folders.
                settings=wandb.Settings(x_disable_meta=True),
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            why = str(error).rstrip(".")
            raise UserError(f"log.wandb=true: {why}; or set WANDB_MODE=offline, and send the run later") from None
        self._stage, self._bests = stage, bests
        self._sent = state.get("rows", 0) if self._run.offline else self._run.step
        self._stages: set[str] = set()
        self._number = 0
        self._waiting: list[tuple[int, Row]] = []
        self._path = rundir.path
        self._samples: dict[str, deque[Row]] = defaultdict(deque)
        self._taken = state.get("samples", 0)
        self._covered = -1  # the step of the last checkpoint
        for number, row in enumerate(JsonLines(rundir.samples)):
            if number >= self._taken:
                self._samples[row["stage"]].append(row)
        for row in JsonLines(rundir.metrics):
            self._send(self._take_number(), row)

    def write(self, step: int, epoch: int, metrics: MetricValues) -> None:
        """Keep the row until a checkpoint covers it."""
        self._waiting.append((self._take_number(), {"stage": self._stage, "step": step, "epoch": epoch, **metrics}))

    def write_best(self, step: int, name: str, value: float) -> None:
        """W&B finds it among the rows."""

    def write_samples(self, rows: Sequence[Row]) -> None:
        """Keep them until a row of metrics goes."""
        self._samples[self._stage].extend(rows)

    def flush(self) -> None:
        """What waits is in metrics.jsonl too."""

    def committed(self, step: int) -> None:
        """Send what the checkpoint covers."""
        self._covered = step
        while self._waiting and self._waiting[0][1]["step"] <= step:
            number, row = self._waiting.pop(0)
            self._send(number, row)

    def close(self) -> None:
        """End the run; rows that no checkpoint covers are never sent. Samples that no row came after go with the row
        that was sent last, which W&B keeps open until the next."""
        rows = self._take_samples(self._stage, self._covered) if self._sent else []
        if rows:
            self._run.log(self._media(rows), step=self._sent - 1)
        folder = Path(self._run.dir).parent.name
        self._run.finish()
        sent = {"rows": self._sent, "samples": self._taken}
        write_json(self._state_file, {"id": self._id, **sent, "finished": [*self._finished, folder]})

    def _take_samples(self, stage: str, step: int) -> list[Row]:
        """Those of a stage that wait, up to a step; they wait no more."""
        waiting, found = self._samples[stage], list[Row]()
        while waiting and waiting[0]["step"] <= step:
            found.append(waiting.popleft())
        self._taken += len(found)
        return found

    def _media(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Samples of one stage as W&B shows them, of each name those of the newest step: pictures, or a table."""
        from wandb import Image, Table

        newest: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            newest[row["name"]] = [one for one in newest[row["name"]] if one["step"] == row["step"]] + [row]
        media: dict[str, Any] = {}
        for name, found in newest.items():
            key, files = f"{found[0]['stage']}/{name}", [self._path / str(row.get("image")) for row in found]
            pictures = [Image(str(f), caption=row["caption"]) for f, row in zip(files, found) if f.is_file()]
            cells = [as_cells(row) for row in found if "image" not in row]
            columns = list(dict.fromkeys(column for row in cells for column in row))
            if pictures:
                media[key] = pictures
            if cells:
                media[key] = Table(columns=columns, data=[[row.get(column) for column in columns] for row in cells])
        return media

    def _take_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _send(self, number: int, row: Row) -> None:
        """One row with its stage's own step, so that stages do not collide, and the samples that wait for it; not if
        W&B has it already."""
        stage = row["stage"]
        samples = self._take_samples(stage, row["step"])
        if number < self._sent:
            return
        self._sent = number + 1
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            if stage in self._bests:
                name, mode = self._bests[stage]
                self._run.define_metric(f"{stage}/{name}", step_metric=f"{stage}/step", summary=f"{mode},last")
        numbers = {f"{stage}/{name}": value for name, value in row.items() if name != "stage"}
        self._run.log({**numbers, **self._media(samples)}, step=number)


def _offline_folders(rundir: RunDir, run_id: str) -> list[Path]:
    return sorted((rundir.path / "wandb").glob(f"offline-run-*-{run_id}"))


def _rename_killed(rundir: RunDir, run_id: str, finished: Sequence[str]) -> None:
    """Rename the offline folders of launches that were killed, so that `wandb sync` passes them over."""
    for path in _offline_folders(rundir, run_id):
        if path.name not in finished:
            path.rename(path.with_name(f"killed-{path.name}"))


def open_sinks(
    rundir: RunDir,
    stage: str,
    step: int,
    config: Config,
    settings: Mapping[str, Any],
    run_settings: Mapping[str, Any],
    bests: Mapping[str, tuple[str, str]],
) -> list[Sink]:
    """The sinks that the configuration asks for, each continued after `step`. `settings` are those of the stage as
    section.name, `run_settings` those of the run in their sections, both without what may not be shown; `bests` has by
    stage the metric that its best value is of, and `min` or `max`."""
    sinks: list[Sink] = [JsonSink(rundir, stage, step)]
    if config.log.tensorboard:
        sinks.append(TensorBoardSink(rundir, stage, step, settings))
    if config.log.wandb:
        sinks.append(WandbSink(rundir, stage, config, run_settings, bests))
    return sinks
