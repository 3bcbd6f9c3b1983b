"""`samestep train` as its users run it: new, again, resumed, stopped, on one rank and on several."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.json_files import JsonLines, read_json

pytestmark = pytest.mark.timeout(900)


def rows(run: Path) -> list[dict]:
    return list(JsonLines(run / "metrics.jsonl"))


def metrics_of(run: Path) -> list[dict]:
    """Metrics without what depends on the clock."""
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in rows(run)]


def test_a_run_leaves_everything_in_its_directory(shell: Shell) -> None:
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--checkpoint.weights")
    assert codes == [0], output
    run = Path("runs/a")
    for text in (
        "parameters",
        "batch size per GPU",
        "total batch size",
        "epochs",
        "steps",
        "learning rate",
        "mixed precision",
        "number of GPUs",
        "backend",
        "save directory",
    ):
        assert text in output
    assert "done: " in output
    assert read_json(run / "status.json")["status"] == "done"
    assert read_json(run / "config.json")["global_batch"] == 10
    assert [row["step"] for row in rows(run) if "loss" in row] == list(range(1, 9))
    assert any("val/error" in row for row in rows(run))
    assert (run / "logs" / "rank_0.log").exists()
    weights = torch.load(run / "weights" / "model_step_8.pt", weights_only=True)
    assert set(weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_the_same_command_again_finds_the_run_done(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a")
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", "a")
    assert codes == [0]
    assert "done already" in output
    assert len([row for row in rows(Path("runs/a")) if "loss" in row]) == 8


def test_unnamed_runs_are_numbered(shell: Shell) -> None:
    for _ in range(2):
        assert shell("train", str(EXAMPLE), *SMALL)[0] == [0]
    assert sorted(path.name for path in Path("runs").iterdir()) == ["sine-verify-1", "sine-verify-2"]


def test_another_run_in_the_directory_is_refused(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a")
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--hidden", "5")
    assert codes == [2]
    assert "holds a different run (hidden differ)" in output
    Path("notes").mkdir()
    Path("notes/x.txt").write_text("mine")
    assert "holds no samestep run" in shell("train", str(EXAMPLE), *SMALL, "--out", ".", "--name", "notes")[1]


def test_a_run_in_use_is_refused_and_left_alone(shell: Shell) -> None:
    first = shell.start("train", str(EXAMPLE), *SMALL, "--name", "a", "--max_steps", "100000")
    wait_for(lambda: len(rows(Path("runs/a"))) > 2)
    codes, output = shell("train", "--resume", "a")
    assert codes == [2]
    assert "is in use by a live run" in output
    first.signal(signal.SIGTERM)
    assert first.wait(30) == [75]


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM), (3, signal.SIGUSR1)])
def test_a_signal_stops_all_ranks_resumably(shell: Shell, ranks: int, number: signal.Signals) -> None:
    workers = shell.start("train", str(EXAMPLE), *SMALL, "--name", "a", "--max_steps", "100000", ranks=ranks)
    wait_for(lambda: len(rows(Path("runs/a"))) > 2)
    workers.signal(number)
    assert workers.wait(30) == [75] * ranks, workers.output(0)
    status = read_json(Path("runs/a/status.json"))
    assert status["status"] == "preempted"
    assert find_checkpoints(Path("runs/a/checkpoints/fit"))[-1].step == status["step"] > 2
    assert "samestep train --resume" in workers.output(0)


def test_stock_torchrun_is_told_success_or_it_would_restart(shell: Shell) -> None:
    env = {"TORCHELASTIC_RUN_ID": "none", "SAMESTEP_LAUNCHER": ""}
    workers = shell.start("train", str(EXAMPLE), *SMALL, "--name", "a", "--max_steps", "100000", ranks=2, env=env)
    wait_for(lambda: len(rows(Path("runs/a"))) > 2)
    workers.signal(signal.SIGTERM)
    assert workers.wait(30) == [0, 0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(shell: Shell, ranks: int) -> None:
    common = [*SMALL, "--epochs", "2", "--max_steps", "null", "--log.every", "7"]
    assert shell("train", str(EXAMPLE), *common, "--name", "uninterrupted", ranks=ranks)[0] == [0] * ranks
    workers = shell.start("train", str(EXAMPLE), *common, "--name", "parts", ranks=ranks)
    wait_for(lambda: len(rows(Path("runs/parts"))) > 3)
    workers.signal(signal.SIGTERM)
    assert workers.wait(30) == [75] * ranks, "it must be stopped before it is done"
    codes, output = shell("train", "--resume", "runs/parts", ranks=ranks)
    assert codes == [0] * ranks
    assert "resumed from" in output
    assert metrics_of(Path("runs/uninterrupted")) == metrics_of(Path("runs/parts"))
    assert weights_of("runs/uninterrupted") == weights_of("runs/parts")


def test_max_time_stops_resumably(shell: Shell) -> None:
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--max_steps", "1000000", "--max_time", "1s", ranks=2)
    assert codes == [75, 75]
    assert "stopped by max_time" in output


def test_resume_may_change_only_what_does_not_shape_the_run(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--max_steps", "100000", "--max_time", "1s")
    codes, output = shell("train", "--resume", "a", "--learning_rate", "1")
    assert codes == [2]
    assert "learning_rate cannot change" in output
    assert shell("train", "--resume", "a", "max_time=0.5s", "--batch_size", "2")[0] == [75]


def test_init_from_takes_weights_only(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--checkpoint.weights")
    for source in ("runs/a", "runs/a/checkpoints/fit/step_00000008", "runs/a/weights/model_step_8.pt"):
        name = "from_" + Path(source).stem
        codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", name, "--init_from", source, "--learning_rate=0")
        assert codes == [0], output
        assert weights_of(f"runs/{name}") == weights_of("runs/a"), "with a rate of zero the weights stay"
        assert next(row["step"] for row in rows(Path("runs") / name) if "loss" in row) == 1
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--init_from", "runs/a", "--hidden", "5")
    assert codes == [2]
    assert "0.weight" in output


def test_wandb_offline_keeps_its_id_after_a_resume(shell: Shell) -> None:
    args = ["train", str(EXAMPLE), *SMALL, "--name", "a", "--log.wandb", "--max_steps", "100000", "--max_time", "1s"]
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    assert shell(*args, env=env)[0] == [75]
    first = json.loads(Path("runs/a/wandb.json").read_text())["id"]
    assert shell("train", "--resume", "a", env=env)[0] == [75]
    assert json.loads(Path("runs/a/wandb.json").read_text())["id"] == first
    assert len(list(Path("runs/a/wandb").glob(f"offline-run-*-{first}"))) == 2


def test_tensorboard_has_each_step_once_after_a_resume(shell: Shell) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = ["train", str(EXAMPLE), "--preset", "verify", "--log.every", "1", "--name", "a", "--max_steps", "300"]
    workers = shell.start(*args)
    wait_for(lambda: len(rows(Path("runs/a"))) > 3)
    workers.kill()
    assert shell("train", "--resume", "a")[0] == [0]
    events = EventAccumulator("runs/a/tensorboard/fit")
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 301))


def weights_of(run: str) -> dict[str, list[float]]:
    from samestep.train.weights.sources import find_weights

    return {name: tensor.tolist() for name, tensor in find_weights(Path(run)).items()}


def test_a_run_begins_with_the_weights_of_another_by_its_name(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a")
    args = ["train", str(EXAMPLE), *SMALL, "--init_from", "a", "--learning_rate=0"]
    codes, output = shell(*args, "--name", "b")
    assert codes == [0], output
    assert weights_of("runs/b") == weights_of("runs/a")
    assert read_json(Path("runs/b/config.json"))["config"]["init_from"] == "runs/a"
    Path("runs/a").rename("elsewhere")
    assert "done already" in shell(*args, "--name", "b")[1], "the weights that it began with are no longer needed"
    codes, output = shell(*args[:-2], "nobody", "--name", "c")
    assert codes == [2]
    assert (
        "nobody does not exist; give a run's name or directory, a checkpoint folder, a weight file, or a model"
        in output
    )
    assert not Path("runs/c").exists()


def test_a_file_called_like_a_shipped_recipe_is_trained(shell: Shell) -> None:
    Path("sub").mkdir()
    Path("sub/mdlm.py").write_text(EXAMPLE.read_text())
    Path("mdlm.py").write_text("raise SystemExit('another file')")
    codes, output = shell("train", "sub/mdlm.py", *SMALL, "--name", "a", ranks=2)
    assert codes == [0, 0], output
    assert read_json(Path("runs/a/first_launch.json")).keys() == {"fit"}
    assert shell("train", "--resume", "a")[0] == [0]


def test_a_resume_finds_the_recipe_from_any_folder_and_no_other_of_its_name(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("wave.py").write_text(EXAMPLE.read_text())
    assert shell("train", "wave.py", *SMALL, "--name", "a", "--max_time", "0s")[0] == [75]
    run = Path("runs/a").absolute()
    Path("elsewhere").mkdir()
    Path("elsewhere/wave.py").write_text("raise SystemExit('another file')")
    monkeypatch.chdir("elsewhere")
    codes, output = shell("train", "--resume", str(run), "--max_time", "null")
    assert codes == [0], output
    assert "code is not that" not in output
    (run.parents[1] / "wave.py").rename(run.parents[1] / "moved.py")
    codes, output = shell("train", "--resume", str(run))
    assert codes == [2]
    assert "wave.py does not exist" in output


def wait_for(condition: object, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_resume_from_a_weight_file_says_what_it_lacks(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--checkpoint.weights")
    weights = "runs/a/weights/model_step_8.pt"
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", "b", "--learning_rate=0", "--resume", weights)
    assert codes == [0], output
    assert "does not hold the step (starting at 0), the optimizer's state (starting fresh)" in output
    assert weights_of("runs/b") == weights_of("runs/a")


def test_resume_from_a_weight_file_takes_the_state_it_holds(shell: Shell) -> None:
    shell("train", str(EXAMPLE), *SMALL, "--name", "a", "--checkpoint.weights")
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 1)).sum().backward()
    optimizer.step()
    held = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "step": 5}
    torch.save(held, "other.pt")
    codes, output = shell("train", str(EXAMPLE), *SMALL, "--name", "b", "--resume", "other.pt", ranks=2)
    assert codes == [0, 0], output
    assert "does not hold the random state" in output
    assert [row["step"] for row in rows(Path("runs/b")) if "loss" in row] == [6, 7, 8]
    torch.save({**held, "optimizer_state_dict": torch.optim.AdamW([model[0].weight]).state_dict()}, "odd.pt")
    assert "does not fit (it is for 1 parameters" in shell("train", str(EXAMPLE), *SMALL, "--resume", "odd.pt")[1]
