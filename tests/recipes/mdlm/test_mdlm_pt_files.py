"""checkpoint_epoch_N.pt holds what older scripts expect, for any sharding; a run continues from one without a break."""

from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.recipes.mdlm.pt_files import EpochFiles, FitWithEpochFiles, History
from samestep.train.record.progress import Progress
from samestep.train.session.continue_from_file import continue_from_file
from samestep.train.weights.sources import fill, open_weights
from samestep.world.world import World
from toys import (
    SETTINGS,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_order,
    learner_of,
    made,
    moments_of,
    rate,
    run_on_ranks,
    weights_of,
)

PER_EPOCH, STEPS = 3, 9
KEYS = {"epoch", "model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "train_losses", "val_losses"}


def task_of(folder: Path, world: World, strategy: str, continued: Path | None = None) -> FitWithEpochFiles:
    rows = Points(13)
    return FitWithEpochFiles(
        learner_of(made(Net), world, strategy),
        feed_of(rows, world, 5, 2, STEPS),
        error,
        validation=feed_of(rows, world, 13, 4, 1, order=in_order(rows, 13)),
        files=EpochFiles(folder, "val/error", rate, SETTINGS, {"vocab_size": 7, "mask_token": 3}, continued),
    )


def go(task: FitWithEpochFiles, progress: Progress, until: int) -> None:
    """As the loop does: step, validate at an epoch's end, and twice in the second epoch."""
    while progress.step < until:
        tick = progress.tick()
        task.step(tick)
        if tick.last_of_epoch or tick.step == PER_EPOCH:
            task.validate(tick)
        progress.step += 1


def run(folder: Path, strategy: str) -> None:
    world = World.join(device="cpu", timeout=60)
    with default_dtype(torch.float64):
        task = task_of(folder, world, strategy)
        go(task, Progress(PER_EPOCH), 2 * PER_EPOCH)
        assert not (folder / "checkpoint_epoch_2.pt").exists(), "validation could still follow"
        wanted = {"weights": weights_of(task.learner), "moments": moments_of(task.learner)}
        go(task, Progress(PER_EPOCH, step=2 * PER_EPOCH), STEPS)
        task.write_pending()
        if world.is_main:
            torch.save(wanted, folder / "wanted.pt")
    world.leave()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("nproc", "strategy"), [(1, "ddp"), (2, "ddp"), (2, "fsdp")])
def test_a_file_holds_what_older_scripts_expect(nproc: int, strategy: str, tmp_path: Path) -> None:
    run_on_ranks(run, nproc, tmp_path, strategy, logs=tmp_path / "logs")
    wanted = torch.load(tmp_path / "wanted.pt")
    files = {path.name: torch.load(path, weights_only=True) for path in tmp_path.glob("checkpoint*")}
    assert sorted(files) == [f"checkpoint_epoch_{epoch}.pt" for epoch in (1, 2, 3)]
    found = files["checkpoint_epoch_2.pt"]
    assert set(found) == KEYS | {"vocab_size", "mask_token"}
    assert (found["epoch"], found["vocab_size"], found["mask_token"]) == (2, 7, 3)
    assert len(found["train_losses"]) == len(found["val_losses"]) == 2
    assert found["scheduler_state_dict"]["last_epoch"] == 2 * PER_EPOCH
    close(found["model_state_dict"], {f"model.{name}": weight for name, weight in wanted["weights"].items()}, 0)
    module = made(Net).double()
    torch.nn.ModuleDict({"model": module}).load_state_dict(found["model_state_dict"])
    optimizer = torch.optim.AdamW(module.parameters())
    optimizer.load_state_dict(found["optimizer_state_dict"])
    for name, parameter in module.named_parameters():
        moments = {f"state.{name}.{kind}": value for kind, value in optimizer.state[parameter].items()}
        assert all(torch.equal(value, wanted["moments"][key]) for key, value in moments.items())
    assert optimizer.param_groups[0]["lr"] == rate(2 * PER_EPOCH)


def test_a_run_continues_from_a_file_as_if_it_had_not_ended(tmp_path: Path) -> None:
    with default_dtype(torch.float64):
        whole = task_of(tmp_path / "whole", World.single(), "ddp")
        go(whole, Progress(PER_EPOCH), STEPS)
        whole.write_pending()
        file = tmp_path / "whole" / "checkpoint_epoch_1.pt"
        resumed, progress = task_of(tmp_path / "resumed", World.single(), "ddp", continued=file), Progress(PER_EPOCH)
        fill(resumed.learner.module, open_weights(file), "weights")
        continue_from_file(file, [resumed.learner], progress)
        assert progress.step == PER_EPOCH
        go(resumed, progress, STEPS)
        resumed.write_pending()
    last = [torch.load(tmp_path / place / "checkpoint_epoch_3.pt", weights_only=True) for place in ("whole", "resumed")]
    assert not (tmp_path / "resumed" / "checkpoint_epoch_1.pt").exists()
    assert all(torch.equal(a, b) for a, b in zip(*(file["model_state_dict"].values() for file in last)))
    assert last[0]["train_losses"] == last[1]["train_losses"]
    assert last[0]["val_losses"] == last[1]["val_losses"]


def old_file(path: Path, **more: Any) -> Path:
    torch.save({"model_state_dict": made(Net).state_dict(), **more}, path)
    return path


def test_an_old_file_without_an_optimizer_says_what_it_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner, progress = learner_of(made(Net), World.single(), "ddp"), Progress(PER_EPOCH)
    continue_from_file(old_file(tmp_path / "old.pt", epoch=2), [learner], progress)
    assert progress.step == learner.updates == 2 * PER_EPOCH
    assert "does not hold the optimizer's state (starting fresh), the random state" in caplog.text
    continue_from_file(old_file(tmp_path / "older.pt"), [learner], progress := Progress(PER_EPOCH))
    assert progress.step == 0
    assert "the step (starting at 0)" in caplog.text


def test_of_several_validations_in_an_epoch_the_last_counts() -> None:
    history = History()
    history.add_validation(0, 3.0)
    history.add_validation(0, 2.0)
    history.add_validation(1, 1.0)
    assert history.val == [2.0, 1.0]
    other = History()
    other.load_state_dict(history.state_dict())
    assert other == history
