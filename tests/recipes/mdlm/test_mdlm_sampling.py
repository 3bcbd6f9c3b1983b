"""Sampling text: exact length, prompt untouched, no special tokens, rows that do not depend on each other."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.tokenizer.vocabulary import BYTES, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm import sampling
from samestep.recipes.mdlm.sampling import (
    SamplingConfig,
    SamplingPass,
    batches_by_shape,
    evenly,
    fill,
    plan,
    sample,
    until_end,
)


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
def options_of(draw: st.DrawFn) -> SamplingConfig:
    length = draw(st.integers(1, 20))
    block = draw(st.none() | st.integers(1, length + 2))
    steps = draw(st.integers(1 if block is None else -(-length // block), 25))
    return SamplingConfig(
        max_new_tokens=length,
        steps=steps,
        block_length=block,
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        remasking=draw(st.sampled_from(["low_confidence", "random"])),
        cfg_scale=draw(st.sampled_from([0.0, 1.5])),
        eos=draw(st.sampled_from(["free", "last", "never"])),
        stop=draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(options_of(), st.integers(1, 3), st.integers(0, 5), st.integers(0, 2**31))
def test_any_options_write_exactly_the_masked_tokens(
    options: SamplingConfig, rows: int, prompt: int, seed: int
) -> None:
    prompts = prompts_of(rows, prompt)
    for module in (NETWORK, LovesSpecials()):
        tokens = sample(module, prompts, options, seed=seed)
        assert tokens.shape == (rows, prompt + options.max_new_tokens)
        assert torch.equal(tokens[:, :prompt], prompts)
        written = tokens[:, prompt:]
        assert bool(((written < 256) | (written == BYTES.eos)).all())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(options_of(), st.data())
def test_gaps_anywhere_are_filled_and_nothing_else_is_touched(options: SamplingConfig, data: st.DataObject) -> None:
    """Given text may even hold the mask token: what to fill in is passed explicitly."""
    length = options.max_new_tokens + data.draw(st.integers(0, 6))
    gaps = [data.draw(st.permutations(range(length)))[: options.max_new_tokens] for _ in range(3)]
    masked = torch.zeros(3, length, dtype=torch.bool)
    for row, gap in enumerate(gaps):
        masked[row, gap] = True
    tokens, ids = torch.full((3, length), BYTES.mask), torch.tensor([5, 2, 9])
    tokens[0] = 65
    filled = fill(NETWORK, tokens, masked, options, seed=0, ids=ids, vocabulary=BYTES)
    assert torch.equal(filled[~masked], tokens[~masked])
    assert not torch.isin(filled[masked], torch.tensor(BYTES.forbidden(272))).any()
    alone = fill(NETWORK, tokens[1:2], masked[1:2], options, seed=0, ids=ids[1:2], vocabulary=BYTES)
    assert torch.equal(alone[0], filled[1])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(options_of())
def test_a_plan_reveals_every_token_once_in_no_more_than_the_steps(options: SamplingConfig) -> None:
    blocks = plan(options)
    assert sum(len(reveals) for _, _, reveals in blocks) <= options.steps
    assert all(sum(reveals) == last - first and min(reveals) > 0 for first, last, reveals in blocks)
    assert [first for first, _, _ in blocks] == [0, *(last for _, last, _ in blocks[:-1])]
    assert blocks[-1][1] == options.max_new_tokens


def test_evenly() -> None:
    assert evenly(7, 3) == [3, 2, 2]
    assert evenly(6, 3) == [2, 2, 2]


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_a_row_does_not_depend_on_the_rows_beside_it(remasking: str) -> None:
    plan = SamplingConfig(max_new_tokens=12, steps=6, block_length=6, temperature=1.0, remasking=remasking)  # type: ignore[arg-type]
    prompts, ids = prompts_of(4, 3), torch.tensor([10, 3, 7, 8])
    together = sample(NETWORK, prompts, plan, seed=1, ids=ids)
    for rows in ([2], [3, 0]):
        assert torch.equal(sample(NETWORK, prompts[rows], plan, seed=1, ids=ids[rows]), together[rows])


def test_rows_of_one_prompt_and_seeds_differ_and_zero_temperature_does_not() -> None:
    warm = SamplingConfig(max_new_tokens=12, steps=6, temperature=1.0)
    cold = SamplingConfig(max_new_tokens=12, steps=6, temperature=0.0)
    prompts = prompts_of(1, 3).expand(2, -1)
    first, second = sample(NETWORK, prompts, warm, seed=1)
    assert not torch.equal(first, second)
    assert not torch.equal(sample(NETWORK, prompts, warm, seed=2)[0], first)
    first, second = sample(NETWORK, prompts, cold, seed=1)
    assert torch.equal(first, second)


def test_blocks_are_written_from_left_to_right_and_nothing_revealed_changes() -> None:
    module = LovesSpecials()
    plan = SamplingConfig(max_new_tokens=9, steps=6, block_length=4, temperature=1.0, remasking="random")
    final = sample(module, prompts_of(2, 1), plan, seed=0)
    masked = [shown[:, 1:] == BYTES.mask for shown in module.shown]
    assert [int(row) for row in torch.stack(masked).sum((1, 2))] == [18, 14, 10, 6, 2]  # one pass fewer: a block of one
    for shown in module.shown:
        known = shown != BYTES.mask
        assert torch.equal(shown[known], final[known])
    assert not masked[2][:, :4].any()
    assert masked[1][:, 4:].all()


class Fixed(nn.Module):
    """Knows the answer, and is more confident of it further to the right."""

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        logits = torch.zeros(*tokens.shape, BYTES.size)
        logits[:, positions, 65 + positions] = 1.0 + positions
        return logits.expand(tokens.shape[0], -1, -1).clone()


def test_low_confidence_remasking_keeps_the_most_confident_first() -> None:
    order = []

    class Watched(Fixed):
        def forward(self, tokens: Tensor) -> Tensor:
            order.append((tokens[0] == BYTES.mask).nonzero().flatten().tolist())
            return super().forward(tokens)

    plan = SamplingConfig(max_new_tokens=4, steps=4, temperature=0.0)
    assert sample(Watched(), prompts_of(1, 0), plan, seed=0).tolist() == [[65, 66, 67, 68]]
    assert order == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]


def test_ties_go_to_the_left_whatever_the_confidence_was_before() -> None:
    class Level(nn.Module):
        """Most confident on the right while all is masked; then indifferent."""

        def forward(self, tokens: Tensor) -> Tensor:
            shown.append((tokens[0] == BYTES.mask).tolist())
            slope = float((tokens == BYTES.mask).all())
            logits = torch.zeros(*tokens.shape, BYTES.size)
            logits[..., 65] = 1.0 + slope * torch.arange(3)
            return logits

    shown: list[list[bool]] = []
    sample(Level(), prompts_of(1, 0), SamplingConfig(max_new_tokens=3, steps=3, temperature=0.0), seed=0)
    assert shown == [[True, True, True], [True, True, False], [False, True, False]]


def test_temperature_one_draws_from_the_networks_probabilities() -> None:
    class Odds(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            logits = torch.full((*tokens.shape, BYTES.size), -torch.inf)
            logits[..., 65], logits[..., 66] = torch.tensor(0.8).log(), torch.tensor(0.2).log()
            return logits

    for temperature, expected in ((1.0, 0.8), (2.0, 2 / 3)):  # odds 4:1, and their root 2:1
        plan = SamplingConfig(max_new_tokens=1, steps=1, temperature=temperature)
        tokens = sample(Odds(), prompts_of(4000, 0), plan, seed=4)
        assert float((tokens == 65).double().mean()) == pytest.approx(expected, abs=0.025)
        assert set(tokens.flatten().tolist()) == {65, 66}


def test_text_is_cut_at_its_first_end() -> None:
    assert until_end([65, 66, CHAT.eot, 67, CHAT.eos], CHAT) == [65, 66]
    assert until_end([65, BYTES.eos, 67], BYTES) == [65]
    assert until_end([65, 66], BYTES) == [65, 66]


def test_more_than_the_network_accepts_is_refused() -> None:
    plan = SamplingConfig(max_new_tokens=5, steps=5)
    with pytest.raises(UserError, match="max_sequence_length=8"):
        sample(network(max_sequence_length=8), prompts_of(1, 4), plan, seed=0)


def test_guidance_goes_beyond_what_the_prompt_changes() -> None:
    class Prompted(nn.Module):
        """Wants a B; after an A in front it is undecided between B and C, which is what guidance must exaggerate."""

        def forward(self, tokens: Tensor) -> Tensor:
            seen.append(tokens.tolist())
            logits = torch.zeros(*tokens.shape, BYTES.size)
            logits[..., 66] = 1.0
            logits[..., 67] = torch.where(tokens[:, :1] == 65, 0.9, -1.0)
            return logits

    prompts = torch.tensor([[65]])
    for scale, token, passes in ((0.0, 66, 1), (0.04, 66, 2), (0.06, 67, 2)):
        # C: -1 + (scale + 1) * 1.9 overtakes 1 at scale = 1 / 19 = 0.053
        seen: list[list[list[int]]] = []
        options = SamplingConfig(max_new_tokens=1, steps=1, temperature=0.0, cfg_scale=scale)
        assert sample(Prompted(), prompts, options, seed=0).tolist() == [[65, token]]
        assert seen == [[[65, BYTES.mask]], [[BYTES.mask, BYTES.mask]]][:passes]


class Ending(nn.Module):
    """Most confident of an EOS everywhere, then of an EoT at the first position, then of letters; has 300 tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        passes.append(tokens.clone())
        logits = torch.zeros(*tokens.shape, 300)
        logits[..., CHAT.eos] = 9.0
        logits[:, 0, CHAT.eot] = 10.0
        logits[:, 1, 70] = 10.0
        logits[:, 5, 71] = 9.5
        return logits


CHAT = Vocabulary(size=300, mask=256, eos=257, bos=258, eot=259, headers=(260, 261), silent=(258, 260, 261))
passes: list[Tensor] = []


def ending(**changes: object) -> list[int]:
    options = SamplingConfig(**{"max_new_tokens": 6, "steps": 6, "temperature": 0.0, **changes})  # type: ignore[arg-type]
    passes.clear()
    row: list[int] = sample(Ending(), prompts_of(1, 0), options, seed=0, vocabulary=CHAT)[0].tolist()
    return row


def test_ends_may_come_freely_last_or_never() -> None:
    free = [CHAT.eot, 70, *[CHAT.eos] * 3, 71]
    assert ending() == ending(eos="last") == free
    assert [int(shown[0, 1]) for shown in passes[:3]] == [CHAT.mask, 70, 70]
    assert [int(shown[0, 5]) for shown in passes[:3]] == [CHAT.mask, CHAT.mask, 71]
    assert int(passes[-1][0, 4]) == CHAT.mask  # the ends came last, from left to right
    assert ending(eos="never") == [CHAT.eot, 70, 0, 0, 0, 71]


class Random(nn.Module):
    """Any logits, likely ends among them, that depend on all tokens."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, tokens: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + hash(tuple(tokens.flatten().tolist())) % 2**31)
        logits = 2 * torch.randn(*tokens.shape, 300, generator=generator, dtype=torch.float64)
        logits[..., [CHAT.eos, CHAT.eot]] += 5.0
        logits[..., CHAT.forbidden(300)] = -torch.inf
        return logits


def as_llada_has_it(module: nn.Module, length: int) -> list[int]:
    """Greedy, one token a pass: the likeliest tokens, ends included, of which the one is kept that is most probable in
    a softmax whose logits of both ends are -inf."""
    text = torch.full((1, length), CHAT.mask)
    for _ in range(length):
        logits = module(text)[0]
        likeliest = logits.argmax(-1)
        logits[:, [257, 259]] = -torch.inf
        probability = logits.softmax(-1)[torch.arange(length), likeliest]
        kept = int(torch.where(text[0] == CHAT.mask, probability, -1.0).argmax())
        text[0, kept] = likeliest[kept]
    return text[0].tolist()


def test_ends_that_come_last_do_not_count_in_the_confidence_of_others() -> None:
    options = SamplingConfig(max_new_tokens=8, temperature=0.0, eos="last")
    seen = set()
    for seed in range(20):
        module = Random(seed)
        written = sample(module, prompts_of(1, 0), options, seed=0, vocabulary=CHAT)[0].tolist()
        assert written == as_llada_has_it(module, 8)
        seen |= set(written)
    assert {CHAT.eos, CHAT.eot} < seen


def test_nothing_is_written_after_the_block_that_holds_an_end() -> None:
    assert ending(block_length=2) == [CHAT.eot, 70, *[CHAT.eos] * 4]
    assert len(passes) == 2
    assert ending(block_length=2, stop=False)[5] == 71
    assert len(passes) == 6


def test_a_gap_that_ends_does_not_end_the_text_after_it() -> None:
    masked = torch.tensor([[True, True, False, True, True, True, False]])
    options = SamplingConfig(max_new_tokens=5, steps=5, block_length=1, temperature=0.0)
    filled = fill(
        Ending(),
        torch.full((1, 7), 80),
        masked,
        options,
        seed=0,
        ids=torch.zeros(1).long(),
        vocabulary=CHAT,
    )
    assert filled.tolist() == [[CHAT.eot, 70, 80, CHAT.eos, CHAT.eos, 71, 80]]


def test_a_row_that_has_ended_does_not_depend_on_those_that_continue() -> None:
    class Some(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            logits = torch.zeros(*tokens.shape, BYTES.size)
            logits[:, 1, BYTES.eos] = torch.where(tokens[:, 0] == 65, 20.0, 0.0)
            return logits

    options = SamplingConfig(max_new_tokens=4, steps=4, block_length=2, temperature=1.0)
    prompts = torch.tensor([[65], [66]])
    both = sample(Some(), prompts, options, seed=3)
    assert both[0, 3:].tolist() == [BYTES.eos, BYTES.eos]
    assert BYTES.eos not in both[1]
    for row in (0, 1):
        ids = torch.tensor([row])
        assert torch.equal(sample(Some(), prompts[row : row + 1], options, seed=3, ids=ids)[0], both[row])


def test_noise_is_made_only_for_masked_positions_and_in_parts_that_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = SamplingConfig(max_new_tokens=8, steps=4, block_length=4, temperature=1.0, stop=False)
    whole = sample(NETWORK, prompts_of(2, 3), options, seed=5)
    sizes = []
    draft = sampling.draft

    def spy(logits: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
        sizes.append(logits.shape[0])
        return draft(logits, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sampling, "draft", spy)
    monkeypatch.setattr(sampling, "AT_ONCE", 3 * 272)
    assert torch.equal(sample(NETWORK, prompts_of(2, 3), options, seed=5), whole)
    assert sizes == [8, 4, 8, 4]


def test_an_observer_sees_every_token_revealed_once() -> None:
    passes_seen: list[SamplingPass] = []
    snapshots: list[Tensor] = []

    def observe(current: SamplingPass) -> None:
        passes_seen.append(current)
        snapshots.append(current.tokens.clone())

    options = SamplingConfig(max_new_tokens=7, steps=3, temperature=1.0)
    final = sample(NETWORK, prompts_of(2, 2), options, seed=0, observe=observe)
    assert [(current.done, current.passes) for current in passes_seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert torch.equal(
        torch.cat([current.columns for current in passes_seen], 1).sort(1).values, torch.arange(2, 9).expand(2, -1)
    )
    for before, after, current in zip(snapshots, snapshots[1:], passes_seen[1:]):
        assert torch.equal(before.scatter(1, current.columns, after.gather(1, current.columns)), after)
        assert bool(((current.probability > 0) & (current.probability <= 1)).all())
    assert torch.equal(snapshots[-1], final)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_floating_point_type_works(dtype: torch.dtype) -> None:
    options = SamplingConfig(max_new_tokens=6, steps=3, temperature=1.0, cfg_scale=0.5)
    tokens = sample(network().to(dtype), prompts_of(2, 2), options, seed=0)
    assert not torch.isin(tokens, torch.tensor(BYTES.forbidden(272))).any()


@given(st.lists(st.integers(0, 3)), st.integers(1, 4))
def test_batches_hold_one_shape_and_everything_once(shapes: list[int], size: int) -> None:
    batches = batches_by_shape(shapes, size)
    assert sorted(number for batch in batches for number in batch) == list(range(len(shapes)))
    assert all(len({shapes[number] for number in batch}) == 1 and len(batch) <= size for batch in batches)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, not 0"),
        ({"block_length": 0}, "block_length must be a whole number of at least 1 or null, not 0"),
        ({"block_length": 2, "steps": 3}, "steps to 4 or more"),
        ({"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
        ({"cfg_scale": -0.5}, "cfg_scale must be a number of at least 0, not -0.5"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingConfig(**{"max_new_tokens": 8, "steps": 8, **changes})
