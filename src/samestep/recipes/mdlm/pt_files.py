"""`checkpoint_epoch_N.pt`: after every epoch one plain file with the keys that older scripts expect.

It holds `epoch` (how many are complete), `model_state_dict`, `optimizer_state_dict` and `scheduler_state_dict` in
torch's own format, `train_losses` and `val_losses` by epoch, and what the recipe adds. The weights have the names of
the published class (`model.` in front); the moments are in the order of samestep's network. torch's weights-only loader
reads it, and `samestep train RECIPE --resume FILE` continues from it. A run itself resumes from its own checkpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep import Learner, Metrics, Tick
from samestep.core.json_files import Json, atomic_file
from samestep.kit.epoch_files import epoch_file
from samestep.parallel.wrap import full_tensor
from samestep.recipes.mdlm.writing import WritingFit
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator, is_loss
from samestep.train.weights.sources import OUTER, read_extra


@dataclass
class History:
    """Losses by epoch, and which files are written. Checkpoints hold these field names."""

    train: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    """The last validation of each epoch that had one."""
    val_epoch: int = -1
    """The epoch of the last validation."""
    complete: int = 0
    """Epochs that are complete."""
    written: int = 0
    """The last epoch that has a file."""

    @classmethod
    def of(cls, file: Path) -> "History":
        """The history in a file that a run continues from."""
        extra = read_extra(file)
        train, val = (list(extra.get(name) or []) for name in ("train_losses", "val_losses"))
        epoch = extra.get("epoch", 0)
        return cls(train, val, complete=epoch, written=epoch)

    def add_validation(self, epoch: int, value: float) -> None:
        """Record a validation; of several in an epoch the last one counts."""
        self.val = [*(self.val[:-1] if epoch == self.val_epoch else self.val), value]
        self.val_epoch = epoch

    def state_dict(self) -> dict[str, Json]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Json]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclass(frozen=True)
class EpochFiles:
    """Where the files are written, and what they hold in addition to weights, optimizer and losses."""

    folder: Path
    metric: str
    """The validation metric that is kept as `val_losses`."""
    rate: Callable[[int], float]
    """The learning rate of each update."""
    optim: OptimSettings
    extra: Mapping[str, Json]
    """What the recipe adds to each file."""
    continued: Path | None = None
    """A file of this kind that the run continues from."""


class FitWithEpochFiles(WritingFit):
    """`Fit` that also writes a file after every epoch.

    A file is written when the next epoch begins, or by `write_pending` at the end: only then validation is done.
    """

    def __init__(self, *args: Any, files: EpochFiles, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._files, self._losses = files, MetricAccumulator(self.learner.world)
        self._history = History.of(files.continued) if files.continued else History()
        self.state = {**self.state, "history": self._history, "history_window": self._losses}

    def step(self, tick: Tick) -> Metrics:
        """One update; before the first of an epoch, write the file of the epoch before."""
        self.write_pending()
        metrics = super().step(tick)
        self._losses.add({name: metric for name, metric in metrics.items() if is_loss(name)})
        if tick.last_of_epoch:
            self._history.train = [*self._history.train, self._losses.read().get("loss", float("nan"))]
            self._history.complete = tick.epoch + 1
        return metrics

    def validate(self, tick: Tick) -> Mapping[str, float]:
        metrics = super().validate(tick)
        if self._files.metric in metrics:
            self._history.add_validation(tick.epoch, metrics[self._files.metric])
        return metrics

    def write_pending(self) -> None:
        """Write the file of the last complete epoch if it is not written yet; all ranks call this together."""
        history, files = self._history, self._files
        if history.written == history.complete:
            return
        history.written = history.complete
        updates = self.learner.updates
        # Of a torch scheduler that is stepped once per update.
        scheduler = {"last_epoch": updates, "_step_count": updates + 1, "_last_lr": [files.rate(updates)]}
        weights = {OUTER + name: tensor for name, tensor in self.learner.weights().items()}
        content = {
            "epoch": history.complete,
            "model_state_dict": gather_to_main(self.learner, weights),
            "optimizer_state_dict": plain_optimizer(self.learner, files),
            "scheduler_state_dict": scheduler,
            "train_losses": history.train,
            "val_losses": history.val,
            **files.extra,
        }
        if self.learner.world.is_main:
            with atomic_file(epoch_file(files.folder, history.complete)) as file:
                torch.save(content, file)


def gather_to_main(learner: Learner, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors in the memory of rank 0, gathered one after the other; all ranks take part."""
    found = {}
    for name, tensor in tensors.items():
        value = full_tensor(tensor).detach()
        if learner.world.is_main:
            found[name] = value.to("cpu", copy=True)
    return found


def plain_optimizer(learner: Learner, files: EpochFiles) -> dict[str, Any]:
    """The state of the optimizer in the format of `torch.optim.AdamW(module.parameters())`."""
    moments = gather_to_main(learner, learner.state_dict()["optimizer"])
    names = [name for name, parameter in learner.module.named_parameters() if parameter.requires_grad]
    kinds = ("step", "exp_avg", "exp_avg_sq")
    state = {
        number: {kind: moments[f"state.{name}.{kind}"] for kind in kinds} if moments else {}
        for number, name in enumerate(names)
    }
    optim = files.optim
    group = {"lr": files.rate(learner.updates), "betas": optim.betas, "eps": optim.eps}
    return {"state": state, "param_groups": [{**group, "weight_decay": optim.weight_decay, "params": list(state)}]}
