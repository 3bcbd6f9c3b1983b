"""Features of stages, learners and compiled losses where they meet."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep.cli.main import main
from samestep.parallel.compiling import LossCompiler
from samestep.train.api.fit import evaluate
from samestep.train.learner.dropout import keyed_dropout
from samestep.train.session.hooks.step_start import _facts_of
from samestep.world.world import World
from toys import Points, feed_of, learner_of, made, run_on_ranks


def test_a_stage_that_writes_an_array_ends_with_its_best_state_and_the_next_starts_from_it(tmp_path: Path) -> None:
    args = ["train", "planted.together", "--preset=verify", f"--out={tmp_path}", "--name=a", "--no-log.tensorboard"]
    output = run_on_ranks(main, 2, args, logs=tmp_path / "logs")
    assert "stage 'first' ends with the state of step 2, the best by val/error 1" in output
    assert "stage 'first', step_00000002" in output, "the second begins with it"


def test_validation_before_the_first_update_needs_no_dropout_masks() -> None:
    network = keyed_dropout(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))
    learner = learner_of(network, World.single(), "lone")
    feed = feed_of(Points(8), World.single(), 8, 4, steps=1)
    found = evaluate(learner, feed, lambda module, batch: {"sum": module(batch["x"].float()).sum(1)})
    assert found.keys() == {"sum"}


class Copying:
    """A state whose tensors are new ones each time it is asked for."""

    def __init__(self) -> None:
        self.value = torch.zeros(3)

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.value = state["value"]


def test_a_copy_of_a_state_never_counts_as_unchanged() -> None:
    part = Copying()
    before = _facts_of(part)
    part.value += 1
    assert _facts_of(part) != before
    learner = learner_of(made(lambda: nn.Linear(4, 2)), World.single(), "lone")
    assert _facts_of(learner) == _facts_of(learner)


def test_a_partial_that_is_made_anew_is_the_same_loss() -> None:
    def loss(module: nn.Module, batch: object, scale: float) -> float:
        return scale

    compiler = LossCompiler(lambda graph, inputs: graph.forward)
    compiler(partial(loss, scale=1.0))
    assert not compiler.is_new(partial(loss, scale=2.0))
    assert compiler.is_new(lambda module, batch: 0)
