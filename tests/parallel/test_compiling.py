"""A loss is compiled with its network: the same numbers, compiled once, on all ranks or on none."""

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from samestep.data.loading import Batch
from samestep.parallel import compiling
from samestep.parallel.compiling import LossCompiler, repeat_rows
from samestep.parallel.wrap import wrap
from samestep.train.learner.learner import Learner
from samestep.world.world import World
from toys import SETTINGS, Case, Net, Points, close, default_dtype, error, feed_of, made, on_ranks, rate, weights_of


class Counting:
    """A compiler that runs what it is given as it is."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.compiled = fails, 0

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Callable:
        self.compiled += 1
        if self.fails:
            raise RuntimeError("no compiler here\nand much more")
        return graph.forward


class Recording(Counting):
    """Keeps for each compilation whether it was to record CUDA graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[bool] = []

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor], **settings: dict[str, bool]) -> Callable:
        self.recorded.append(settings.get("config_patches", {}).get("triton.cudagraphs", False))
        return super().__call__(graph, inputs)


def trained(
    world: World, strategy: str, backend: Callable | str | None, steps: int = 7
) -> tuple[Learner, dict[str, Tensor]]:
    """The weights after some steps, whose global batches of 11 rows make micro-batches of 4 rows and fewer."""
    torch._dynamo.reset()
    parallel = wrap(made(Net), world, strategy, None)
    parallel.compiler = LossCompiler(backend) if backend else None
    learner = Learner(parallel, world, rate, SETTINGS)
    feed = feed_of(Points(25), world, 11, 4, steps=steps)
    for step in range(steps):
        weight = 1.0 + step % 2

        def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:  # a new function in every step
            return {"error": weight * error(module, batch)["error"]}  # noqa: B023 (called at once)

        learner.update(feed[step], loss)
    return learner, weights_of(learner)


def the_numbers_are_those_without_compiling(world: World, strategy: str) -> None:
    backend = Counting()
    _, weights = trained(world, strategy, backend)
    close(weights, trained(world, strategy, None)[1], tolerance=1e-12)
    if strategy == "lone":
        assert backend.compiled == 2, "once for each weight of the loss, whatever the number of rows"


def all_ranks_go_on_without_if_one_cannot_compile(world: World, strategy: str) -> None:
    backend = Counting(fails=world.rank == world.size - 1)
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("samestep.train.learner.preparation")
    logger.addHandler(handler)
    learner, weights = trained(world, strategy, backend)
    logger.removeHandler(handler)
    # Not to the last bit: on x86-64 MKL's products depend on where in memory their factors lie.
    close(weights, trained(world, strategy, None)[1], tolerance=1e-15)
    assert not learner._parallel.compiler.enabled
    wanted = "learner 'model' is not compiled, because torch.compile failed: RuntimeError: no compiler here"
    assert messages == [wanted] * world.is_main


CASES: list[Case] = [
    the_numbers_are_those_without_compiling,
    all_ranks_go_on_without_if_one_cannot_compile,
]

test_on_ranks = on_ranks(CASES)


def test_with_torchs_own_compiler() -> None:
    with default_dtype(torch.float64):
        world = World.single()
        close(trained(world, "lone", "inductor", 1)[1], trained(world, "lone", None, 1)[1], tolerance=1e-12)


def test_rows_are_repeated() -> None:
    batch = {"x": torch.tensor([[1, 2], [3, 4]]), "live": torch.tensor([True, True])}
    padded = repeat_rows(batch, 4)
    assert padded["x"].tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]
    assert len(padded["live"]) == 4
    assert repeat_rows(batch, 2) is batch


def test_some_shapes_are_recorded_and_further_ones_only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_SHAPES", 2)
    torch._dynamo.reset()
    backend = Recording()
    compiler = LossCompiler(backend)
    compiler.cuda_graphs = True
    found = {}
    for length in (3, 5, 7, 3, 9, 5):
        batch = {"x": torch.ones(2, length)}
        found[length] = compiler(summed, args=[batch])(nn.Identity(), batch)
    assert {length: float(value.sum()) for length, value in found.items()} == {3: 6, 5: 10, 7: 14, 9: 18}
    assert backend.recorded == [True, True, False], "for one length, for any, and for any that is too many"


def test_the_first_shape_keeps_its_code_whatever_comes_between() -> None:
    torch._dynamo.reset()
    ran: list[int] = []

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable:
        number = len(graphs)
        graphs.append(graph)
        return lambda *given: ran.append(number) or graph.forward(*given)  # type: ignore[func-returns-value]

    graphs: list[fx.GraphModule] = []
    compiler = LossCompiler(backend)
    for length in (9, 5, 9, 7, 6, 9):
        batch = {"x": torch.ones(2, length)}
        assert compiler(summed, args=[batch])(nn.Identity(), batch).tolist() == [length, length]
    assert ran == [0, 1, 0, 1, 1, 0], "one for the first length, one for any other"


def summed(module: nn.Module, batch: Batch) -> Tensor:
    return module(batch["x"]).sum(1)
