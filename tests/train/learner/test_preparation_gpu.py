"""What a GPU decides before the first update, with its own kernels and compiler."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from samestep import SGD
from samestep.core.json_files import Json
from samestep.data.loading import Batch
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.blocks import checkpoint_activations
from samestep.parallel.wrap import wrap
from samestep.train.learner.learner import Learner
from samestep.train.learner.preparation import Choices
from samestep.world.world import World
from toys import SETTINGS, default_dtype, feed_of, made, rate, weights_of

pytestmark = pytest.mark.gpu


class Tokens:
    """Rows of tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Batch:
        return {"tokens": (torch.arange(128) * (index + 1)) % 64}


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = module(batch["tokens"][:, :-1])
    nats = nn.functional.cross_entropy(logits.transpose(1, 2).float(), batch["tokens"][:, 1:], reduction="none")
    return {"nats": nats.mean(1)}


def made_network() -> Transformer:
    with default_dtype(torch.float32):
        shape = TransformerConfig(d_model=256, n_layers=3, n_heads=4, mlp_hidden_size=512, vocab_size=64, causal=True)
        return made(lambda: Transformer(shape))


def trained(choices: Choices, checkpointing: str = "none", steps: int = 8) -> Learner:
    """By plain descent: AdamW would turn the rounding of a gradient near zero into a whole step."""
    torch._dynamo.reset()
    world, network = World.single("cuda"), made_network()
    checkpoint_activations(network, checkpointing)
    settings = replace(SETTINGS, optimizer=SGD(momentum=0.0), weight_decay=0.0)
    parallel = wrap(network, world, "ddp", torch.bfloat16)
    learner = Learner(parallel, world, rate, settings, mixed_precision="bf16", choices=choices)
    feed = feed_of(Tokens(), world, 16, 8, steps=steps)
    for step in range(steps):
        learner.update(feed[step], loss)
    learner.check_finite()
    return learner


def apart(one: Learner, other: Learner) -> float:
    """How far apart two networks are, relative to what they have learned."""
    ones, others, first = weights_of(one), weights_of(other), made_network().state_dict()
    between = torch.cat([(ones[name] - others[name]).flatten() for name in ones]).norm()
    learned = torch.cat([(ones[name].cpu() - first[name]).flatten() for name in ones]).norm()
    return float(between / learned)


def test_both_are_measured_and_change_the_rounding_only() -> None:
    known: dict[str, Json] = {}

    def fix(what: str, decide) -> Json:
        return known.setdefault(what, decide())

    learner = trained(Choices(compile=None, attention="auto", compiles_from=0.0, steps_left=lambda: 1000, fix=fix))
    assert known["attention/model"] in ("flash", "cudnn", "efficient")
    assert known["compile/model"] == (learner._parallel.compiler is not None)
    assert apart(learner, trained(Choices())) < 0.03


@pytest.mark.parametrize("kernel", ["flash", "cudnn", "efficient", "math"])
@pytest.mark.parametrize("compiled", [False, True])
def test_blocks_attend_again_with_the_same_kernel(kernel: str, compiled: bool) -> None:
    again = trained(Choices(attention=kernel, compile=compiled), checkpointing="full")
    assert apart(again, trained(Choices(attention=kernel))) < 0.03


def test_cuda_graphs_change_the_memory_of_gradients_and_no_number() -> None:
    known: dict[str, Json] = {"compile/model": True, "cuda_graphs/model": True}
    recorded = trained(Choices(compile=None, cuda_graphs=True, known=lambda: known, fix=lambda what, _: known[what]))
    assert recorded._preparation.cuda_graphs
    assert apart(recorded, trained(Choices(compile=True))) < 0.003


def test_a_small_network_is_recorded_and_a_second_launch_does_the_same() -> None:
    known: dict[str, Json] = {}

    def choices() -> Choices:
        return Choices(
            compile=None,
            compiles_from=0.0,
            cuda_graphs=True,
            steps_left=lambda: 1000,
            fix=lambda what, decide: known[what] if what in known else known.setdefault(what, decide()),
            known=lambda: known,
        )

    first = trained(choices())
    assert known == {"compile/model": True, "cuda_graphs/model": True}, "the host is slower than this network's kernels"
    assert apart(first, trained(choices())) < 0.003
