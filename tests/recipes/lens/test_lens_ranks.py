"""The lens on ranks: its updates are those of one process, replicated and sharded, with copies and with adapters."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_toys import bench_of
from language_toys import TOKENS, native, of_transformers
from samestep import Lora
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.recipes.lens.network import Lens
from samestep.recipes.lens.parts import LensShape
from samestep.world.world import World
from toys import UP_TO_2, Case, close, default_dtype, feed_of, on_ranks, rate, weights_of

SHAPE = LensShape(layer=0, t_text=2, bos=2)
PROMPT = [3, 5], [7]
MIX = {"kl": 1.0, "lm": 0.5, "entropy": -0.1, "mse": 2.0}


class Activations:
    """Rows as the recipe has them."""

    def __len__(self) -> int:
        return 7

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(4)
        chosen = torch.as_tensor(indices)
        values = {
            "tokens": torch.randint(0, TOKENS, (7, 6), generator=generator),
            "activation": torch.randn(7, 16, generator=generator, dtype=torch.float64),
            "other": torch.randn(7, 16, generator=generator, dtype=torch.float64),
            "position": torch.arange(7) % 6,
            "tau": torch.full((7,), 0.8, dtype=torch.float64),
        }
        return {name: value[chosen] for name, value in values.items()}


def terms(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found = network(batch)
    return {name: found[name] for name in MIX}


def trained(world: World, strategy: str, lens: Lens, **settings: Any) -> dict[str, Tensor]:
    """The weights after one update."""
    bench = bench_of(world, strategy, **settings)
    learner = bench.learner(lens, rate=rate)
    learner.update(feed_of(Activations(), world, 5, 2, 1)[0], terms, MIX)
    base = {name: full_tensor(p) for name, p in learner.module.model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(base[name], p) for name, p in native().named_parameters() if name in base)
    state = learner.state_dict()
    assert not [name for name in state["model"] if name.startswith("model.") and ".lora_" not in name]
    learner.load_state_dict(state)
    return weights_of(learner)


@cache
def alone(shape: LensShape) -> dict[str, Tensor]:
    """The weights after one update in one process: they are the same for every strategy that is compared with them."""
    return trained(World.single(), "ddp", Lens(native(), shape, PROMPT))


def compared(world: World, strategy: str, shape: LensShape) -> None:
    wanted = alone(shape)
    close(trained(world, strategy, Lens(native(), shape, PROMPT)), wanted, 1e-8)
    begun = Lens(native(), shape, PROMPT).state_dict()
    assert all(not torch.equal(value, begun[name]) for name, value in wanted.items() if "lora_A" not in name)


def copies(world: World, strategy: str) -> None:
    compared(world, strategy, SHAPE)


def both_texts_in_one_pass_with_an_own_head(world: World, strategy: str) -> None:
    compared(world, strategy, replace(SHAPE, stop_gradient=False, trains_head=True))


def adapters(world: World, strategy: str) -> None:
    compared(world, strategy, replace(SHAPE, decoder="lora", encoder="lora", lora=Lora(rank=2)))


def no_cache(world: World, strategy: str) -> None:
    compared(world, strategy, replace(SHAPE, decoder="frozen", kv_cache=False))


def checkpointed(world: World, strategy: str) -> None:
    shape = replace(SHAPE, encoder="lora", lora=Lora(rank=2))
    found = trained(world, strategy, Lens(native(), shape, PROMPT), activation_checkpointing="full")
    close(found, alone(shape), 1e-8)


def trained_gpt2(world: World, strategy: str) -> dict[str, Tensor]:
    lens = Lens(of_transformers("gpt2").double(), replace(SHAPE, encoder="lora", lora=Lora(rank=2)), PROMPT)
    learner = bench_of(world, strategy).learner(lens, rate=rate)
    learner.update(feed_of(Activations(), world, 5, 2, 1)[0], terms, MIX)
    return weights_of(learner)


@cache
def gpt2_alone() -> dict[str, Tensor]:
    return trained_gpt2(World.single(), "ddp")


def gpt2(world: World, strategy: str) -> None:
    close(trained_gpt2(world, strategy), gpt2_alone(), 1e-7)


def a_base_in_bfloat16(world: World, strategy: str) -> None:
    """It stays so, beside adapters in float32 that train."""
    with default_dtype(torch.float32):
        lens = Lens(native().to(torch.bfloat16), replace(SHAPE, decoder="lora", encoder="lora"), PROMPT)
        learner = bench_of(world, strategy, "float32").learner(lens, rate=rate)
        before = weights_of(learner)
        learner.update(feed_of(Activations(), world, 5, 2, 1)[0], terms, MIX)
    assert {p.dtype for p in learner.module.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {value.dtype for value in before.values()} == {torch.float32}
    assert all(not torch.equal(value, before[name]) for name, value in weights_of(learner).items() if "_A" not in name)


CASES: list[Case] = [
    copies,
    both_texts_in_one_pass_with_an_own_head,
    adapters,
    no_cache,
    checkpointed,
    gpt2,
    a_base_in_bfloat16,
]

test_on_ranks = on_ranks(CASES, UP_TO_2)
