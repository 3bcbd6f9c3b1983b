"""How a stage ends: early, with the state of its best checkpoint, with its texts, images and profile written."""

import json
from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir, operations_path
from samestep.train.session.hooks.profiling import profiled_steps
from samestep.train.weights.run_checkpoints import choose_checkpoint
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

pytestmark = pytest.mark.timeout(900)
RECIPE = str(Path(__file__).parent / "ending.py")


def finished_with(step: int) -> bool:
    """Whether `finish` saw the weights of this step's checkpoint."""
    saved = read_tensors(Path(f"runs/a/checkpoints/fit/step_{step:08d}"), "model/model")
    seen = torch.load("runs/a/artifacts/fit/weights.pt", weights_only=True)
    return all(torch.equal(seen[name], tensor) for name, tensor in saved.items())


def test_a_sharded_stage_stops_early_with_its_best_state_and_may_go_on_later(shell: Shell) -> None:
    args = ["--early_stopping", "2", "--best_at_end", "--distributed.strategy", "fsdp", "--profile", "2-3"]
    args += ["--checkpoint.every_epochs", "0"]
    codes, output = shell("train", RECIPE, "--preset", "verify", "--name", "a", *args, ranks=2)
    assert codes == [0, 0], output
    rundir, sentence = RunDir(Path("runs/a")), "val/error has not improved for 2 validations"
    assert f"stopped early after step 6: {sentence}" in output
    assert "stage 'fit' ends with the state of step 2, the best by val/error" in output
    assert [found.step for found in find_checkpoints(rundir.checkpoints("fit"))] == [2, 6]
    assert finished_with(2) and not finished_with(6)
    assert choose_checkpoint(rundir).name == "step_00000002"
    done = read_json(rundir.done("fit"))
    assert (done["step"], done["stopped_early"], done["waited"]) == (6, sentence, 2)
    assert [row["step"] for row in JsonLines(rundir.metrics) if "loss" in row] == [6], "the open row is written"
    diagnosis = diagnose(collect_evidence(rundir))
    assert diagnosis.sentence == f"the run is done: stage 'fit' stopped early after step 6: {sentence}"
    assert logged("note") == [2, 4, 6]
    trace = rundir.profile("fit") / "steps_2-3_rank_0.json"
    assert {path.name for path in trace.parent.iterdir()} == {trace.name, operations_path(trace).name}, "rank 0 alone"
    assert json.loads(trace.read_text())["traceEvents"]
    operations = read_json(operations_path(trace))["operations"]
    slowest = operations[0]
    assert slowest["cpu_seconds"] == max(row["cpu_seconds"] for row in operations) > 0 and slowest["calls"] > 0
    assert slowest["name"] in output.partition("the slowest operations of steps 2 to 3")[2].partition("perfetto")[0]

    rundir.done("fit").unlink()  # as a kill does it between the last save and the end
    codes, output = shell("train", "--resume", "runs/a")
    assert codes == [0], output
    assert read_json(rundir.done("fit"))["step"] == 6, "the count survives: it has stopped already"
    assert finished_with(2)

    codes, output = shell("train", "--resume", "runs/a", "early_stopping=0", "best_at_end=false", ranks=2)
    assert codes == [0, 0], output
    assert "step_00000006, step 6" in output, "it goes on from its last step"
    done = read_json(rundir.done("fit"))
    assert done["step"] == 8 and "stopped_early" not in done
    assert finished_with(8)
    assert choose_checkpoint(rundir).name == "step_00000008"
    assert read_json(rundir.status) == {"status": "done"}
    assert logged("note") == logged("square") == [2, 4, 6, 8], "each once"
    assert logged("step") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert logged("end") == [6, 8], "finish ran twice at step 6"


def logged(name: str) -> list[int]:
    """The steps of a text or image in TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator("runs/a/tensorboard/fit", size_guidance={"tensors": 0, "images": 0}).Reload()
    found = board.Images(name) if name in board.Tags()["images"] else board.Tensors(f"{name}/text_summary")
    return [event.step for event in found]


@pytest.mark.parametrize("text", ["5", "5-2", "0-3", "a-b", "1-2-3"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a range of steps; .* such as profile=20-25"):
        profiled_steps(text)
