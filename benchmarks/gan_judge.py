"""What a judge's reward depends on: which text stands first, or the texts.

    python benchmarks/gan_judge.py --model models/SmolLM2-135M-Instruct

The model completes prompts of the built-in text of the recipe `gan`, and judges each completion beside what a person
wrote for the prompt. Shares are of the reward's variance over all pairs, with the human text first and second: if one
order is judged, and if both are, and averaged, as the recipe does.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Bench, GenerationConfig, LanguageModel, World, open_language_model
from samestep.core.rundir import RunDir
from samestep.kit.generation import generator_outside
from samestep.models.decoding import position_limit
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, Record, load
from samestep.recipes.gan.judges import JudgeConfig, Pair, PairWriter, VerdictJudge
from samestep.train.logging.console import Screen

ROWS = 8


def written_by(
    model: LanguageModel, network: nn.Module, records: Sequence[Record], ids: Tensor, most: int
) -> list[str]:
    """A completion of each record's prompt."""
    how = GenerationConfig(max_new_tokens=most)
    generate = generator_outside(model, "benchmark/write", how, 0, World.single(), 4 * ROWS)
    prompts = [model.prompt(record.prompt) for record in records]
    return [model.decode(tokens) for tokens in generate(network, prompts, ids, step=0).to_lists()]


class OpenJudge(VerdictJudge):
    """Keeps the log-odds of each order that its rewards are made of."""

    def margins(self, network: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        self.last = super().margins(network, rows)
        return self.last


def rewards_of(judge: OpenJudge, network: nn.Module, pairs: Sequence[Pair], ids: Tensor) -> tuple[Tensor, Tensor]:
    """The reward of each pair, and what it would be in each order alone [pairs, 2]."""
    rewards, alone = [], []
    for start in range(0, len(pairs), ROWS):
        part = slice(start, start + ROWS)
        rewards.append(judge.ask(network, pairs[part], ids[part], step=0, turn=None)["reward"].double())
        alone.append(torch.sigmoid(-judge.last.double()))
    return torch.cat(rewards), torch.cat(alone)


def shares(rewards: Tensor) -> str:
    """Of rewards [pairs, orders]: how much of their variance is between orders, and between pairs."""
    whole = rewards.var(correction=0)
    order, text = rewards.mean(0).var(correction=0) / whole, rewards.mean(1).var(correction=0) / whole
    return f"order {order:.1%}, text {text:.1%}, their interplay {1 - order - text:.1%}"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, or org/name of the Hub")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--completions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    world = World.single()
    model = open_language_model(options.model, world, shape=GanConfig().judge.network, dtype="float32")
    network, known = model.network().eval(), load(DataConfig(), seed=0).train.records
    chosen = [known[number * len(known) // options.prompts] for number in range(options.prompts)]
    records = [record for record in chosen for _ in range(options.completions)]
    copies, numbers = torch.arange(options.completions), torch.arange(options.prompts)
    ids = torch.stack([copies.repeat(options.prompts), numbers.repeat_interleave(options.completions)], 1)
    texts = written_by(model, network, records, ids, options.tokens)

    bench = Bench(world, GanConfig(), RunDir(Path("unused")), "gan", Screen(False), sinks=[])
    judge = OpenJudge(bench, JudgeConfig(), model)
    write = PairWriter(model.encode, JudgeConfig(), model.around, position_limit(network))
    written = list(zip(records, texts, strict=True))
    both, alone = rewards_of(judge, network, [write(one.prompt, one.human, text) for one, text in written], ids)
    swapped, _ = rewards_of(judge, network, [write(one.prompt, text, one.human) for one, text in written], ids)
    first, second = alone.mean(0).tolist()
    print(f"{len(texts)} pairs; mean reward in one order: {first:.3f} with the human text first, {second:.3f} second")
    print(f"one order:   {shares(alone)}")
    print(f"both orders: {shares(torch.stack([both, 1 - swapped], 1))}; standard deviation {both.std():.3f}")
    print(f"rewards of a pair and of the pair swapped add up to 1 within {(both + swapped - 1).abs().max():.1e}")


if __name__ == "__main__":
    main()
