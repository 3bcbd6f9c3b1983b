"""Generation on real ranks, replicated and sharded: the same tokens, also where ranks have few prompts or none."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from adapter_toys import bench_of
from language_toys import native, of_transformers
from samestep import Batch, Lora
from samestep.models.log_probs import completion_log_probs
from samestep.train.api.generation import GenerationConfig, LocalGenerator
from samestep.train.learner.draws import Draws
from samestep.world.world import World
from toys import Case, CountGathers, close, learner_of, on_ranks

PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11], [8], [2, 2], [12, 13, 14, 15], [16]]
IDS = torch.tensor([[number % 2, 10 + number] for number in range(len(PROMPTS))])
CONFIG = GenerationConfig(max_new_tokens=9, temperature=1.3)


def uneven_prompts(world: World, strategy: str) -> None:
    """All prompts on one rank, hardly any on another, none anywhere."""
    asked = 0

    def check_stop() -> None:
        nonlocal asked
        asked += 1

    whole = LocalGenerator(CONFIG, Draws("write", 5), World.single(), eos=(1, 4))(native(), PROMPTS, IDS, step=3)
    config, draws = replace(CONFIG, rows_at_once=2), Draws("write", 5)
    generator = LocalGenerator(config, draws, world, eos=(1, 4), check_stop=check_stop, check_every=2)
    learner = learner_of(native(), world, strategy)
    for bounds in ([0, 7, 7, 7], [0, 0, 1, 7], [0, 4, 7, 7], [0, 0, 0, 0]):
        bounds[world.size] = bounds[3]
        mine = slice(bounds[world.rank], bounds[world.rank + 1])
        with learner.inference() as network:
            found = generator(network, PROMPTS[mine], IDS[mine], step=3)
        assert found.to_lists() == whole.to_lists()[mine]
        assert torch.equal(found.finished, whole.finished[mine])
        torch.testing.assert_close(found.log_probs, whole.log_probs[mine], rtol=0, atol=1e-9)
    assert asked > 9
    assert set(world.gather(asked)) == {asked}, "all ranks check for a stop equally often"


class Policy:
    """Two steps of a policy gradient on text that the network itself writes."""

    def __init__(self, world: World, strategy: str, build: Callable[[], nn.Module], lora: Lora | None) -> None:
        self.bench = bench_of(world, strategy, global_batch_size=5, batch_size=2, max_steps=2)
        rows = [{"prompt": prompt + [0] * (5 - len(prompt)), "length": len(prompt)} for prompt in PROMPTS]
        self.feed = self.bench.feed(rows)
        self.learner = self.bench.learner(build, lora=lora)
        config = replace(CONFIG, rows_at_once=3)
        self.generator = LocalGenerator.of(self.bench, "write", config, eos=(1, 4), keep_gathered=lora is None)
        self.written: list[list[int]] = []

    def step(self, number: int) -> dict[str, Tensor]:
        rollout = self.bench.produced(self.feed[number], lambda batch: self.play(batch, number), copies=2)
        self.learner.update(rollout, self.loss)
        return self.learner.weights()

    def play(self, batch: Batch, step: int) -> Batch:
        with self.learner.inference() as network:
            found = self.generator(network, texts(batch), batch["ids"], step=step)
        self.written += found.to_lists()
        real = torch.arange(5) < batch["length"][:, None]
        reward = (found.tokens % 3 == 0).sum(1) - found.lengths / 3
        return {
            "prompt": batch["prompt"],
            "real": real,
            "tokens": found.tokens,
            "mask": found.mask,
            "before": found.log_probs,
            "reward": reward,
        }

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        rows = [batch[name] for name in ("prompt", "real", "tokens", "mask")]
        found = completion_log_probs(network, *rows, temperature=CONFIG.temperature, entropy=True)
        assert found.entropy is not None
        torch.testing.assert_close(found.log_probs.detach(), batch["before"], rtol=0, atol=1e-5)
        ratio = (found.log_probs - batch["before"]).exp()
        return {"policy": -(ratio * batch["reward"][:, None] + 0.01 * found.entropy).mul(batch["mask"]).sum(1)}


def texts(batch: Batch) -> Sequence[list[int]]:
    return [row[:length] for row, length in zip(batch["prompt"].tolist(), batch["length"].tolist(), strict=True)]


def training(world: World, strategy: str) -> None:
    adapters = Lora(rank=2, alpha=8, targets=["q_proj", "down_proj"])
    for build, lora, tolerance in ((native, None, 1e-9), (lambda: of_transformers("llama"), adapters, 1e-5)):
        policies = Policy(World.single(), "lone", build, lora), Policy(world, strategy, build, lora)
        first = {name: value.clone() for name, value in policies[0].learner.weights().items()}
        for step in range(2):
            alone, together = (policy.step(step) for policy in policies)
            close(together, alone, tolerance)
        assert any(not torch.equal(alone[name], value) for name, value in first.items()), "it has learned something"
        everywhere = {tuple(row) for part in world.gather(policies[1].written) for row in part}
        assert {tuple(row) for row in policies[0].written} == everywhere


def gathered_once(world: World, strategy: str) -> None:
    learner = learner_of(native(), world, strategy)
    gathers, written = [], []
    for keep in (False, True, False):
        generator = LocalGenerator(CONFIG, Draws("write", 5), world, keep_gathered=keep)
        with CountGathers() as counted, learner.inference() as network:
            written.append(generator(network, PROMPTS[:3], IDS[:3], step=3).to_lists())
        gathers.append(counted.count)
    assert written[0] == written[1] == written[2]
    if strategy == "fsdp":
        assert gathers == [2 * 9 + 1, 3, 2 * 9 + 1], "two blocks and the rest"


def mixed_precision(world: World, strategy: str) -> None:
    """Where FSDP casts what it passes to a block."""
    for build in (native, lambda: of_transformers("llama"), lambda: of_transformers("llama", "eager")):
        learner = learner_of(build().float(), world, strategy, mixed_precision="bf16")
        generator = LocalGenerator(CONFIG, Draws("write", 5), world)
        with learner.inference() as network:
            found = generator(network, PROMPTS, IDS, step=3)
        assert found.log_probs.dtype == torch.float32
        assert (found.log_probs[found.mask] < 0).all()
        assert found.log_probs.isfinite().all()


CASES: list[Case] = [uneven_prompts, gathered_once, mixed_precision, training]

test_on_ranks = on_ranks(CASES, [(1, "lone"), (2, "ddp"), (2, "fsdp")])
