"""What makes a run depend on the number of ranks is named at the first micro-batch, and nothing else is."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.train.learner.dropout import keyed_dropout
from samestep.train.learner.rank_dependence import finding_rank_dependence
from samestep.world.world import World
from toys import Case, CountingCompiler, Net, Points, close, feed_of, learner_of, made, on_ranks, weights_of

CPU = torch.device("cpu")
NUMBER = "from torch's own generator, which differs by rank, so the run depends on the number of ranks"
IDS = 'keyed by batch["ids"]'
SPLIT = "so the run depends on how a batch is split; use samestep.global_batch_norm(model), which"


class Wrapped(nn.Module):
    """A part that calls a function on what its linear layer gives."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


class Stack(nn.Module):
    def __init__(self, *parts: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        modules = [part if isinstance(part, nn.Module) else Wrapped(part) for part in parts]
        self.first, self.body = nn.Linear(4, 4), nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x))


def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*[x[None, None]] * 3, dropout_p=0.1)[0, 0]


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(4, 2, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def hidden(x: Tensor) -> Tensor:
    """A draw that cannot be followed."""
    with torch._C.DisableTorchFunction():
        return x + torch.rand(4)


def statistics(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def scaled(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).sum(1)


def found(module: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor] = scaled) -> list[str]:
    with finding_rank_dependence(module, CPU, loss) as sentences:
        loss(module, torch.linspace(-1, 1, 24).reshape(6, 4))
    return sentences


FINDINGS: dict[str, tuple[nn.Module, list[str]]] = {
    "dropout": (
        Stack(nn.Dropout(0.1)),
        [f"nn.Dropout in 'body.0' draws its mask {NUMBER}; use samestep.keyed_dropout("],
    ),
    "several": (
        Stack(nn.Dropout(0.1), nn.Tanh(), nn.Dropout(0.2), nn.Dropout(0.3)),
        ["'body.0' and 2 more places draws"],
    ),
    "channels": (Stack(nn.Unflatten(1, (2, 2)), nn.Dropout1d(0.5), nn.Flatten()), ["nn.Dropout1d in 'body.1' draws"]),
    "function": (
        Stack(lambda x: F.dropout(x, 0.1)),
        [f"torch.nn.functional.dropout in 'body.0' draws a dropout mask {NUMBER}; set its probability to 0", IDS],
    ),
    "alpha": (Stack(nn.AlphaDropout(0.1)), ["torch.nn.functional.alpha_dropout in 'body.0' draws a dropout mask", IDS]),
    "attention": (Stack(attend), ["torch.nn.functional.scaled_dot_product_attention in 'body.0' draws a dropout mask"]),
    "mha": (
        Stack(Attention(0.1)),
        ["torch.nn.functional.multi_head_attention_forward in 'body.0.mha' draws a dropout"],
    ),
    "lstm": (Stack(Recurrent()), ["torch.lstm in 'body.0.lstm' draws a dropout mask"]),
    "draw": (Stack(lambda x: x + torch.randn(4)), [f"torch.randn in 'body.0' draws {NUMBER}; use samestep.noise", IDS]),
    "in place": (Stack(lambda x: x + torch.empty(4).uniform_()), ["torch.Tensor.uniform_ in 'body.0' draws from"]),
    "hidden": (Stack(hidden), [f"something in the loss draws {NUMBER}"]),
    "batch norm": (
        Stack(nn.BatchNorm1d(4)),
        [f"nn.BatchNorm1d in 'body.0' normalises by the statistics of a micro-batch, {SPLIT}"],
    ),
    "no running statistics": (
        Stack(nn.BatchNorm1d(4, track_running_stats=False).eval()),
        ["nn.BatchNorm1d in 'body.0'"],
    ),
    "batch norm function": (Stack(statistics), ["torch.nn.functional.batch_norm in 'body.0' normalises by", SPLIT]),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_names_the_module_and_the_fix(name: str) -> None:
    module, texts = FINDINGS[name]
    (sentence,) = found(module)
    assert all(text in sentence for text in texts), sentence


def test_each_kind_has_a_sentence_and_the_loss_is_a_place_too() -> None:
    teacher = nn.Dropout(0.5)
    sentences = found(
        Stack(nn.Dropout(0.1), nn.BatchNorm1d(4)), lambda module, x: module(teacher(x) + torch.rand_like(x)).sum(1)
    )
    assert [sentence.split(" draws")[0].split(" normalises")[0] for sentence in sentences] == [
        "torch.nn.functional.dropout in a Dropout that is not part of the network",
        "torch.rand_like in the loss",
        "nn.Dropout in 'body.0'",
        "nn.BatchNorm1d in 'body.1'",
    ]


def own_generator(x: Tensor) -> Tensor:
    return x + torch.rand(4, generator=torch.Generator().manual_seed(3))


def put_back(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return x + torch.rand(4)


SILENT = {
    "nothing": Stack(nn.LayerNorm(4), nn.GroupNorm(2, 4)),
    "evaluation": Stack(nn.Dropout(0.5).eval(), nn.BatchNorm1d(4).eval()),
    "zero": Stack(nn.Dropout(0.0), Attention(0.0), lambda x: F.dropout(x, 0.5, training=False)),
    "own generator": Stack(own_generator),
    "put back": Stack(put_back),
    "instance norm": Stack(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten()),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_does_not_depend_on_ranks_is_no_finding(name: str) -> None:
    assert found(SILENT[name]) == []


def test_results_and_generators_are_those_of_a_pass_without_tracing() -> None:
    teacher = made(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval()
    module = made(lambda: Stack(nn.Dropout(0.5), attend, lambda x: x + torch.rand(4)))
    x = torch.linspace(-1, 1, 24).reshape(6, 4)

    def loss(module: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():  # computed by a faster way, of other bits
            target = teacher(x[None])[0]
        return (module(x) - target).square().sum(1)

    ends = []
    for traced in (False, True):
        torch.manual_seed(5)
        with finding_rank_dependence(module, CPU, loss) if traced else nullcontext():
            rows = loss(module, x)
        ends.append((rows, torch.get_rng_state()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def test_a_loss_that_fails_leaves_nothing_behind() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        found(Stack(fails))
    assert found(Stack()) == []
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert not torch.overrides.has_torch_function((torch.ones(1),))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_compiled_network_is_not_traced(wrapped: bool) -> None:
    torch._dynamo.reset()
    module, backend = Stack(nn.Dropout(0.1), nn.BatchNorm1d(4), nn.Dropout(0.0)), CountingCompiler()
    if wrapped:
        module = torch.compile(module, backend=backend, fullgraph=True)  # type: ignore[assignment]
    else:
        module.compile(backend=backend, fullgraph=True)
    sentences = found(module)
    assert ["nn.Dropout in" in sentences[0], "nn.BatchNorm1d in" in sentences[1], len(sentences)] == [True, True, 2]
    scaled(module, torch.ones(6, 4))
    assert backend.compiled == 1
    torch._dynamo.reset()
    quiet = Stack(nn.Dropout(0.1).eval())
    quiet.compile(backend=backend)
    assert found(quiet) == []


def test_a_compiled_function_that_a_loss_calls_still_compiles() -> None:
    torch._dynamo.reset()
    backend = CountingCompiler()
    inner = torch.compile(lambda x: F.dropout(x, 0.5) * 2, backend=backend, fullgraph=True)
    module = Stack(inner)
    assert len(found(module)) == 1
    for _ in range(3):
        scaled(module, torch.ones(6, 4))
    assert backend.compiled == 2, "once with somebody looking, once without"


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]).sum(1) - batch["y"].sum(1)).square()}


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"out": module(batch["x"])}


def couple(rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
    return {"error": (rows["out"][own] @ rows["out"].T).square().sum(1)}


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def lines_of_learners(world: World, strategy: str) -> None:
    """Rank 0 says each thing once, also where the first pass is a discarded one; every rank knows it."""
    log = logging.getLogger("samestep.train.learner.rank_dependence")
    for update in (
        lambda learner, micro_batches: learner.update(micro_batches, loss),
        lambda learner, micro_batches: learner.update_coupled(micro_batches, embed, couple),
    ):
        kept = Lines()
        log.addHandler(kept)
        learner = learner_of(Stack(nn.Dropout(0.5), nn.BatchNorm1d(4)), world, strategy)
        feed = feed_of(Points(24), world, 12, 2, steps=2)  # no micro-batch of one row, which BatchNorm refuses
        for step in range(2):
            update(learner, feed[step])
        log.removeHandler(kept)
        assert [sentence.partition(" in 'body.")[0] for sentence in learner.loss_calls.rank_dependence] == [
            "nn.Dropout",
            "nn.BatchNorm1d",
        ]
        wanted = [f"WARNING learner 'model': {sentence}" for sentence in learner.loss_calls.rank_dependence]
        assert kept.lines == (wanted if world.is_main else [])


def keyed_networks_are_silent(world: World, strategy: str) -> None:
    learner = learner_of(keyed_dropout(Stack(nn.Dropout(0.5))), world, strategy)
    learner.update(feed_of(Points(16), world, 8, 2, steps=1)[0], loss)
    assert learner.loss_calls.rank_dependence == []


def rows_that_mix_are_named(world: World, strategy: str) -> None:
    """On all ranks, though some have one row in their first micro-batch; and nothing of the trial stays."""
    plain, checked = (learner_of(made(Net), world, strategy) for _ in range(2))
    plain.loss_calls._is_checked = True
    feed = feed_of(Points(20), world, 10, 3, steps=2)

    def mixed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        error = (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)
        return {"error": error, "mean": error.mean().expand(len(error)), "constant": error * 0 + 1}

    for learner in (plain, checked):
        for step in range(2):
            learner.update(feed[step], mixed, mix={"error": 1.0})
    (sentence,) = checked.loss_calls.rank_dependence
    assert sentence.startswith("'mean' is one number for all rows of a micro-batch")
    assert not plain.loss_calls.rank_dependence
    close(weights_of(checked), weights_of(plain), tolerance=0)


CASES: list[Case] = [lines_of_learners, keyed_networks_are_silent, rows_that_mix_are_named]

test_on_ranks = on_ranks(CASES)
