"""What is left open is measured once, decided by rank 0, kept for later launches, and changes no number."""

import time
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from samestep.core.errors import RunFailed
from samestep.core.json_files import Json
from samestep.data.loading import Batch
from samestep.parallel.compiling import LossCompiler
from samestep.parallel.loss_graphs import LossGraphs
from samestep.parallel.wrap import wrap
from samestep.train.learner.dropout import KeyedDropout
from samestep.train.learner.learner import Learner
from samestep.train.learner.preparation import Choices, Preparation, _Times
from samestep.world.world import World
from toys import (
    LONE,
    SETTINGS,
    UP_TO_2,
    Case,
    Net,
    Points,
    close,
    error,
    feed_of,
    in_worlds,
    made,
    on_ranks,
    rate,
    weights_of,
)


class Decisions:
    """What a run directory keeps."""

    def __init__(self, **known: Json) -> None:
        self.known = known

    def fix(self, what: str, decide: Any) -> Json:
        if what not in self.known:
            self.known[what] = decide()
        return self.known[what]


class Attends(Net):
    """Attends over the tokens of a micro-batch."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found = self.table(tokens)[None, None]
        mixed = nn.functional.scaled_dot_product_attention(found, found, found)[0, 0]
        return self.last(self.norm(torch.tanh(self.first(x)) + 0 * mixed + self.table(tokens)))


def trained(
    world: World, strategy: str, choices: Choices, kind: type[nn.Module] = Net, loss: Any = None, mix: Any = None
) -> Learner:
    torch._dynamo.reset()
    learner = Learner(wrap(made(kind), world, strategy, None), world, rate, SETTINGS, choices=choices)
    feed = feed_of(Points(25), world, 11, 4, steps=3)
    for step in range(3):
        learner.update(feed[step], loss or error, mix)
    return learner


def open_choices(decisions: Decisions, steps: int = 100, **more: Any) -> Choices:
    plain = {"compile": None, "compiles_from": 0.0, "compiler": lambda: LossCompiler("eager")}
    return Choices(fix=decisions.fix, steps_left=lambda: steps, **{**plain, **more})


def measuring_changes_no_number(world: World, strategy: str) -> None:
    decisions = Decisions()
    learner = trained(world, strategy, open_choices(decisions, attention="auto"), Attends)
    assert set(decisions.known) == {"attention/model", "compile/model"}
    assert decisions.known["attention/model"] == "flash"
    assert set(world.gather(decisions.known["compile/model"])) == {decisions.known["compile/model"]}
    close(weights_of(learner), weights_of(trained(world, strategy, Choices(), Attends)), tolerance=1e-12)


def what_is_to_be_compiled_is_compiled_after_its_attention_was_measured(world: World, strategy: str) -> None:
    compiled: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        compiled.append(graph)
        return graph.forward

    choices = Choices(compile=True, attention="auto", compiler=lambda: LossCompiler(backend))
    trained(world, strategy, choices, Attends)
    calls = [node for graph in compiled for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert calls, "attention is part of what was compiled"


@in_worlds(LONE)
def a_loss_without_its_network_is_told_so(world: World, strategy: str) -> None:
    learner = Learner(wrap(made(Net), world, strategy, None), world, rate, SETTINGS, choices=open_choices(Decisions()))
    with pytest.raises(RunFailed, match="did not call the network"):
        learner.update(feed_of(Points(8), world, 8, 8, steps=1)[0], lambda module, batch: {"error": batch["y"].sum(1)})


def what_was_decided_is_not_measured_again(world: World, strategy: str) -> None:
    for decision in (True, False):
        calls: list[str] = []
        decisions = Decisions(**{"compile/model": decision})
        choices = open_choices(decisions, on_compiling=partial(calls.append, "compiled"))
        learner = trained(world, strategy, choices)
        assert calls == ["compiled"] * decision
        assert (learner._parallel.compiler is not None) == decision


def a_short_run_is_not_compiled(world: World, strategy: str) -> None:
    def refuse() -> LossCompiler:
        raise AssertionError("compiled")

    decisions = Decisions()
    # Every rank has another opinion of how long it takes; that of rank 0 counts.
    steps = 10**6 if world.rank else 0
    learner = trained(world, strategy, open_choices(decisions, steps, compiles_from=1.0, compiler=refuse))
    assert decisions.known == {"compile/model": False}
    assert learner._parallel.compiler is None


def what_is_slower_compiled_stays_as_it_is(world: World, strategy: str) -> None:
    def slow(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        def call(*args: Any) -> Any:
            for _ in range(300):
                result = graph.forward(*args)
            return result

        return call

    decisions = Decisions()
    trained(world, strategy, open_choices(decisions, compiler=lambda: LossCompiler(slow)))
    assert decisions.known == {"compile/model": False}


def one_that_cannot_be_compiled_stays_as_it_is(world: World, strategy: str) -> None:
    def fail(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        if world.rank == world.size - 1:
            raise RuntimeError("no compiler here")
        return graph.forward

    decisions = Decisions()
    learner = trained(world, strategy, open_choices(decisions, compiler=lambda: LossCompiler(fail)))
    assert decisions.known == {"compile/model": False}
    assert learner._parallel.compiler is None


def a_lack_of_memory_ends_a_pass_that_communicates(world: World, strategy: str) -> None:
    """Others would wait in it; where nobody does, all go on without compiling."""

    def run(*inputs: Tensor) -> Any:
        raise torch.OutOfMemoryError("simulated")

    choices = open_choices(Decisions(), compiler=lambda: LossCompiler(lambda graph, inputs: run))
    if strategy == "fsdp" and world.size > 1:
        with pytest.raises(torch.OutOfMemoryError, match="simulated"):
            trained(world, strategy, choices)
    else:
        assert trained(world, strategy, choices)._parallel.compiler is None


class Recording:
    """A compiler whose results lie in the same memory every time when they are recorded, as those of CUDA graphs do;
    otherwise it is slow."""

    def __init__(self, is_slow: bool = False) -> None:
        """`is_slow`: it is the other way round."""
        self.recorded, self.is_slow = 0, is_slow

    def backend(self, graph: torch.fx.GraphModule, inputs: list[Tensor], **options: Any) -> Any:
        is_recorded = "config_patches" in options
        self.recorded += is_recorded
        seconds = 0.05 if is_recorded == self.is_slow else 0
        part = partial(self.recorded_part if is_recorded else self.plain_part, seconds)
        return aot_autograd(fw_compiler=part, bw_compiler=part)(graph, inputs)

    @staticmethod
    def plain_part(seconds: float, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        def call(*args: Any) -> Any:
            time.sleep(seconds)
            return graph.forward(*args)

        return make_boxed_func(call)

    @staticmethod
    def recorded_part(seconds: float, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        memory: list[Tensor] = []

        def call(*args: Any) -> Any:
            time.sleep(seconds)
            results = graph.forward(*args)
            found = [result for result in results if isinstance(result, Tensor)]
            if not memory:
                memory.extend(torch.empty_like(result) for result in found)
            places = iter([place.copy_(result) for place, result in zip(memory, found, strict=True)])
            return [next(places).detach() if isinstance(result, Tensor) else result for result in results]

        return make_boxed_func(call)

    def compiler(self) -> LossCompiler:
        return LossCompiler(self.backend)


def slow_error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    if not torch.compiler.is_compiling():
        time.sleep(0.1)
    return error(module, batch)


def cuda_graphs_are_taken_where_they_are_faster(world: World, strategy: str) -> None:
    is_lone = strategy == "lone"
    recording, decisions = Recording(), Decisions(**({} if is_lone else {"compile/model": True}))
    choices = open_choices(decisions, compiler=recording.compiler, cuda_graphs=True)
    learner = trained(world, strategy, choices, loss=slow_error)
    assert decisions.known == {"compile/model": True} | ({"cuda_graphs/model": True} if is_lone else {})
    assert (recording.recorded > 0) == is_lone
    close(weights_of(learner), weights_of(trained(world, strategy, Choices())), tolerance=1e-12)
    resumed = open_choices(decisions, compiler=recording.compiler, cuda_graphs=True, known=lambda: decisions.known)
    again = trained(world, strategy, resumed, loss=slow_error)
    assert again._preparation.cuda_graphs == is_lone, "as the first launch decided"
    close(weights_of(learner), weights_of(again), tolerance=1e-12)


@in_worlds(LONE)
def what_is_slow_as_cuda_graphs_is_compiled_without_them(world: World, strategy: str) -> None:
    recording, decisions = Recording(is_slow=True), Decisions()
    choices = open_choices(decisions, compiler=recording.compiler, cuda_graphs=True)
    plain = trained(world, strategy, Choices(), loss=error_in_some_time)
    learner = trained(world, strategy, choices, loss=error_in_some_time)
    assert recording.recorded, "it was tried"
    assert decisions.known == {"compile/model": True, "cuda_graphs/model": False}
    close(weights_of(learner), weights_of(plain), tolerance=1e-12)


def error_in_some_time(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    if not torch.compiler.is_compiling():
        time.sleep(0.05)  # less than the two parts of what is slow
    return error(module, batch)


def what_one_process_records_several_do_not(world: World, strategy: str) -> None:
    decisions = Decisions(**{"attention/model": None, "compile/model": True, "cuda_graphs/model": True})
    options: dict[str, Any] = {"compile": True, "attention": "auto", "cuda_graphs": True}
    learner = trained(world, strategy, open_choices(decisions, **options, known=lambda: decisions.known))
    assert learner._preparation.cuda_graphs == (strategy == "lone")


class Recordable(Net):
    is_recordable = True


class RecordableWithDropout(Recordable):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = KeyedDropout(0.5)


class Replays(LossGraphs):
    """What it replays is computed at once; what it does not, slowly."""

    is_replaying = False

    def __init__(self, on_replay: Any, fails: bool = False) -> None:
        super().__init__(on_replay)
        self.fails = fails

    def _call(self, key: Any, plain: Any, network: nn.Module, batch: Any) -> Any:
        if self.fails:
            self.failure = "no graphs here"
            return plain(network, batch)
        Replays.is_replaying = True
        try:
            return plain(network, batch)
        finally:
            Replays.is_replaying = False


def error_without_replay(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    time.sleep(0 if Replays.is_replaying else 0.05)
    return error(module, batch)


def two_errors(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Only the second gives all parameters a gradient."""
    assert isinstance(module, Net)
    return {
        "error": module.last(module.norm(module.first(batch["x"]))).sum(1),
        "all": error_without_replay(module, batch)["error"],
    }


def a_network_is_recorded_where_it_says_so_and_is_not_sharded(world: World, strategy: str) -> None:
    decisions = Decisions()
    choices = Choices(cuda_graphs=True, recorder=Replays, fix=decisions.fix, known=lambda: decisions.known)
    plain = weights_of(trained(world, strategy, Choices(), Recordable))
    for _ in range(2):  # the second launch is told
        learner = trained(world, strategy, choices, Recordable, error_without_replay)
        assert decisions.known == ({} if strategy == "fsdp" else {"recorded/model": True})
        assert learner._preparation.cuda_graphs == (strategy != "fsdp")
        close(weights_of(learner), plain, tolerance=1e-12)
    for kind in (Net, RecordableWithDropout):
        silent = trained(world, strategy, choices, kind, error_without_replay)
        assert not silent._preparation.cuda_graphs
    decisions.known.clear()
    partly = trained(world, strategy, choices, Recordable, two_errors, {"error": 1.0}) if strategy == "lone" else None
    assert partly is None or not partly._preparation.cuda_graphs, "what the mix leaves out would get zeros, not nothing"


def one_that_cannot_be_recorded_on_one_rank_stays_as_it_is_on_all(world: World, strategy: str) -> None:
    decisions, is_last = Decisions(), world.rank == world.size - 1
    choices = Choices(cuda_graphs=True, recorder=partial(Replays, fails=is_last), fix=decisions.fix)
    learner = trained(world, strategy, choices, Recordable, error_without_replay)
    assert decisions.known == ({} if strategy == "fsdp" else {"recorded/model": False})
    assert learner._parallel.compiler is None


def ranks_whose_times_differ_do_the_same(world: World, strategy: str) -> None:
    """The last rank finds that a compiled or recorded pass is slower, and the others that it is faster."""
    is_last, measured = 0 < world.rank == world.size - 1, Preparation._times

    def times(self: Preparation, attempt: Any) -> _Times:
        measured(self, attempt)
        took = 2.0 if is_last == (self._parallel.compiler is not None) else 1.0
        return _Times(0.0 if is_last else took, took)

    plain = weights_of(trained(world, strategy, Choices(), Recordable))
    with patch.object(Preparation, "_times", times):
        compiled = trained(world, strategy, open_choices(Decisions()), Recordable)
        recorded = trained(
            world, strategy, Choices(cuda_graphs=True, recorder=Replays, fix=Decisions().fix), Recordable
        )
    assert compiled._parallel.compiler is not None
    assert recorded._preparation.cuda_graphs == (strategy != "fsdp")
    for learner in (compiled, recorded):
        close(weights_of(learner), plain, tolerance=1e-12)


CASES: list[Case] = [
    a_network_is_recorded_where_it_says_so_and_is_not_sharded,
    one_that_cannot_be_recorded_on_one_rank_stays_as_it_is_on_all,
    ranks_whose_times_differ_do_the_same,
    cuda_graphs_are_taken_where_they_are_faster,
    what_is_slow_as_cuda_graphs_is_compiled_without_them,
    what_one_process_records_several_do_not,
    what_is_to_be_compiled_is_compiled_after_its_attention_was_measured,
    a_loss_without_its_network_is_told_so,
    measuring_changes_no_number,
    what_was_decided_is_not_measured_again,
    a_short_run_is_not_compiled,
    what_is_slower_compiled_stays_as_it_is,
    one_that_cannot_be_compiled_stays_as_it_is,
    a_lack_of_memory_ends_a_pass_that_communicates,
]

test_on_ranks = on_ranks(CASES, UP_TO_2)
