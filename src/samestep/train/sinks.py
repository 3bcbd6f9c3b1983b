"""Where rank 0 writes figures: JSON lines always, TensorBoard by default, Weights & Biases when asked for.

After a resume, what lies beyond the checkpoint is cut off first, so each step stands once.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from samestep.core.errors import UserError
from samestep.core.records import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.train.config import Config

Figures = Mapping[str, float]


class Sink(Protocol):
    """A place for figures."""

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """Figures after `step` steps."""

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

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


class TensorBoardSink:
    """TensorBoard events; it is told from which step on older events are void."""

    def __init__(self, rundir: RunDir, stage: str, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(rundir.tensorboard / stage), purge_step=step + 1)

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """One scalar a figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class WandbSink:
    """Weights & Biases, under the same run id after a resume."""

    def __init__(self, rundir: RunDir, stage: str, step: int, config: Config, data: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb=true needs the package wandb: pip install 'samestep[wandb]'") from None
        note = rundir.path / "wandb.json"
        run_id = (read_json(note) or {}).get("id") or secrets.token_hex(4)
        write_json(note, {"id": run_id})
        self._prefix, self._from = f"{stage}/", step
        self._run = wandb.init(
            project=config.log.wandb_project,
            name=rundir.path.name,
            id=run_id,
            resume="allow",
            dir=str(rundir.path),
            config=dict(data),
        )
        self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def write(self, step: int, epoch: int, figures: Figures) -> None:
        """One row with its own step, so that stages do not collide."""
        named = {self._prefix + name: value for name, value in figures.items()}
        self._run.log({**named, self._prefix + "step": step, self._prefix + "epoch": epoch})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def open_sinks(rundir: RunDir, stage: str, step: int, config: Config, data: Mapping[str, Any]) -> list[Sink]:
    """The sinks that the configuration asks for, each continued after `step`."""
    sinks: list[Sink] = [JsonSink(rundir, stage, step)]
    if config.log.tensorboard:
        sinks.append(TensorBoardSink(rundir, stage, step))
    if config.log.wandb:
        sinks.append(WandbSink(rundir, stage, step, config, data))
    return sinks
