"""Where rank 0 writes figures: JSON lines always, TensorBoard by default, Weights & Biases when asked for.

After a resume, what lies beyond the checkpoint is cut off first, so each step stands once.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.train.config import Config

Figures = Mapping[str, float]


class Sink(Protocol):
    """A place for figures."""

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """Figures after `step` steps."""

    def flush(self) -> None:
        """Bring what was written so far where a kill cannot take it: the checkpoint to be saved will not repeat it."""

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

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """One row."""
        self._lines.append({"stage": self._stage, "step": step, "epoch": epoch, **figures})

    def flush(self) -> None:
        """Every row is flushed as it is written."""

    def committed(self, step: int) -> None:
        """Rows beyond the checkpoint are cut when the run is resumed."""

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


class TensorBoardSink:
    """TensorBoard events; it is told from which step on older events are void."""

    def __init__(self, rundir: RunDir, stage: str, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(rundir.tensorboard / stage), purge_step=step + 1)

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """One scalar a figure, all in one event: each wakes the writer's thread, which the loop has to wait for."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._writer.file_writer.add_summary(Summary(value=values), step)

    def flush(self) -> None:
        """Write out what is queued."""
        self._writer.flush()

    def committed(self, step: int) -> None:
        """Events beyond the checkpoint are void when the run is resumed."""

    def close(self) -> None:
        """Write out what is queued."""
        self._writer.close()


def open_sinks(rundir: RunDir, stage: str, step: int, config: Config, data: Mapping[str, Any]) -> list[Sink]:
    """The sinks that the configuration asks for, each continued after `step`."""
    sinks: list[Sink] = [JsonSink(rundir, stage, step)]
    if config.log.tensorboard:
        sinks.append(TensorBoardSink(rundir, stage, step))
    if config.log.wandb:
        from samestep.train.wandb_sink import WandbSink

        sinks.append(WandbSink(rundir, stage, config, data))
    return sinks
