"""Writing text: exact length, prompt untouched, no special tokens, rows that do not depend on each other."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.vocabulary import BYTES
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.sampling import SamplingConfig, evenly, passes, sample, write


def network(**changes: object) -> Transformer:
    torch.manual_seed(0)
    fields = {"d_model": 16, "n_layers": 1, "n_heads": 2, "mlp_hidden_size": 16, "embedding_size": 272, "init_std": 0.5}
    return Transformer(TransformerConfig(**{**fields, **changes})).double()  # type: ignore[arg-type]


NETWORK = network()


class LovesSpecials(nn.Module):
    """Gives its highest logits to tokens that must never be written, and counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.shown.append(tokens.clone())
        logits = torch.zeros(*tokens.shape, 272)
        logits[..., BYTES.mask], logits[..., BYTES.bos], logits[..., 259:] = 100.0, 99.0, 98.0
        return logits


def prompts_of(rows: int, length: int) -> Tensor:
    return torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(3))


@st.composite
def plans(draw: st.DrawFn) -> SamplingConfig:
    length = draw(st.integers(1, 20))
    block = draw(st.none() | st.integers(1, length))
    steps = draw(st.integers(1 if block is None else -(-length // block), 25))
    return SamplingConfig(
        length=length,
        steps=steps,
        block_length=block,
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        remasking=draw(st.sampled_from(["low_confidence", "random"])),
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(plans(), st.integers(1, 3), st.integers(0, 5), st.integers(0, 2**31))
def test_any_plan_writes_exactly_what_was_asked(plan: SamplingConfig, rows: int, prompt: int, seed: int) -> None:
    prompts = prompts_of(rows, prompt)
    for module in (NETWORK, LovesSpecials()):
        tokens = sample(module, prompts, plan, seed=seed)
        assert tokens.shape == (rows, prompt + plan.length)
        assert torch.equal(tokens[:, :prompt], prompts)
        written = tokens[:, prompt:]
        assert bool(((written < 256) | (written == BYTES.eos)).all())
        assert torch.equal(sample(module, prompts, plan, seed=seed), tokens)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plans())
def test_a_plan_reveals_every_token_once_in_no_more_than_the_steps(plan: SamplingConfig) -> None:
    found = list(passes(plan))
    assert len(found) <= plan.steps
    assert sum(reveal for _, _, reveal in found) == plan.length
    assert all(reveal > 0 for _, _, reveal in found)
    blocks = [next(iter(group))[:2] for _, group in itertools.groupby(found, key=lambda one: one[:2])]
    assert [first for first, _ in blocks] == [0, *(last for _, last in blocks[:-1])]
    assert blocks[-1][1] == plan.length


def test_evenly() -> None:
    assert evenly(7, 3) == [3, 2, 2]
    assert evenly(6, 3) == [2, 2, 2]


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_a_row_does_not_depend_on_the_rows_beside_it(remasking: str) -> None:
    plan = SamplingConfig(length=12, steps=6, block_length=6, temperature=1.0, remasking=remasking)  # type: ignore[arg-type]
    prompts, ids = prompts_of(4, 3), torch.tensor([10, 3, 7, 8])
    together = sample(NETWORK, prompts, plan, seed=1, ids=ids)
    for rows in ([2], [3, 0]):
        assert torch.equal(sample(NETWORK, prompts[rows], plan, seed=1, ids=ids[rows]), together[rows])


def test_rows_of_one_prompt_and_seeds_differ_and_zero_temperature_does_not() -> None:
    warm = SamplingConfig(length=12, steps=6, temperature=1.0)
    cold = SamplingConfig(length=12, steps=6, temperature=0.0)
    prompts = prompts_of(1, 3).expand(2, -1)
    first, second = sample(NETWORK, prompts, warm, seed=1)
    assert not torch.equal(first, second)
    assert not torch.equal(sample(NETWORK, prompts, warm, seed=2)[0], first)
    first, second = sample(NETWORK, prompts, cold, seed=1)
    assert torch.equal(first, second)


def test_blocks_are_written_from_left_to_right_and_nothing_revealed_changes() -> None:
    module = LovesSpecials()
    plan = SamplingConfig(length=9, steps=6, block_length=4, temperature=1.0, remasking="random")
    final = sample(module, prompts_of(2, 1), plan, seed=0)
    hidden = [shown[:, 1:] == BYTES.mask for shown in module.shown]
    assert [int(row) for row in torch.stack(hidden).sum((1, 2))] == [18, 14, 10, 6, 2]  # one pass fewer: a block of one
    for shown in module.shown:
        known = shown != BYTES.mask
        assert torch.equal(shown[known], final[known])
    assert not hidden[2][:, :4].any()
    assert hidden[1][:, 4:].all()


class Fixed(nn.Module):
    """Knows the answer, and is surer of it the further to the right it stands."""

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        logits = torch.zeros(*tokens.shape, BYTES.size)
        logits[:, positions, 65 + positions] = 1.0 + positions
        return logits.expand(tokens.shape[0], -1, -1).clone()


def test_low_confidence_keeps_the_surest_first() -> None:
    order = []

    class Watched(Fixed):
        def forward(self, tokens: Tensor) -> Tensor:
            order.append((tokens[0] == BYTES.mask).nonzero().flatten().tolist())
            return super().forward(tokens)

    plan = SamplingConfig(length=4, steps=4, temperature=0.0)
    assert sample(Watched(), prompts_of(1, 0), plan, seed=0).tolist() == [[65, 66, 67, 68]]
    assert order == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]


def test_temperature_one_draws_from_the_networks_probabilities() -> None:
    class Odds(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            logits = torch.full((*tokens.shape, BYTES.size), -torch.inf)
            logits[..., 65], logits[..., 66] = torch.tensor(0.8).log(), torch.tensor(0.2).log()
            return logits

    for temperature, expected in ((1.0, 0.8), (2.0, 2 / 3)):  # odds 4:1, and their root 2:1
        plan = SamplingConfig(length=1, steps=1, temperature=temperature)
        tokens = sample(Odds(), prompts_of(4000, 0), plan, seed=4)
        assert float((tokens == 65).double().mean()) == pytest.approx(expected, abs=0.025)
        assert set(tokens.flatten().tolist()) == {65, 66}


def test_write_gives_text_without_the_prompt() -> None:
    plan = SamplingConfig(length=5, steps=5, temperature=1.0)
    texts = write(NETWORK, "né", 3, plan, seed=0)
    assert len(texts) == 3
    assert len(write(NETWORK, "", 2, plan, seed=0)) == 2
    prompts = torch.tensor([list("né".encode())] * 3)
    rows = sample(NETWORK, prompts, plan, seed=0)[:, 3:].tolist()
    assert texts == [bytes(t for t in row if t < 256).decode(errors="replace") for row in rows if BYTES.eos not in row]


def test_more_than_the_network_can_take_is_refused() -> None:
    plan = SamplingConfig(length=5, steps=5)
    with pytest.raises(UserError, match="max_sequence_length=8"):
        sample(network(max_sequence_length=8), prompts_of(1, 4), plan, seed=0)
