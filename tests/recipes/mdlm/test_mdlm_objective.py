"""The objective: an unbiased bound, the same for any split of a batch, weighted by all tokens."""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact_toy import LENGTH, TOY, ExactConditionals
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from samestep import MicroBatches
from samestep.data.order import VALIDATION_EPOCH, Shuffled, micro_batches
from samestep.data.token_rows import AnswerRows, TextRows
from samestep.data.tokenizer.vocabulary import BYTES, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.objective import Objective, ObjectiveConfig, nll_metrics, pair_rows


def batch_of(
    tokens: Tensor, epoch: int = 0, lengths: Tensor | None = None, prompts: Tensor | None = None
) -> dict[str, Tensor]:
    rows = torch.arange(len(tokens))
    if lengths is None:
        lengths = torch.full((len(tokens),), tokens.shape[1])
    batch = {"tokens": tokens, "length": lengths, "ids": torch.stack((torch.full_like(rows, epoch), rows), dim=1)}
    return batch if prompts is None else {**batch, "prompt": prompts}


def objective(vocabulary: Vocabulary = TOY, seed: int = 5, sft: bool = False, **options: object) -> Objective:
    return Objective(ObjectiveConfig(**{"cut_rows": 0.0, **options}), vocabulary, seed, sft)  # type: ignore[arg-type]


def relative_error(estimates: Tensor, exact: Tensor) -> tuple[float, float]:
    """How far the mean of the estimates is off, and its standard error, both over the exact mean."""
    error = estimates.detach() - exact
    scale = float(exact.mean())
    return float(error.mean()) / scale, float(error.std()) / len(error) ** 0.5 / scale


def toy_rows(toy: ExactConditionals, rows: int) -> Tensor:
    drawn = torch.multinomial(toy.table, rows, replacement=True, generator=torch.Generator().manual_seed(2))
    return toy.texts[drawn]


def paired(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch as one step of one rank, its rows paired."""
    size = len(batch["ids"])
    return pair_rows(MicroBatches(0, [batch], {}, batch["ids"].numpy(), [(0, size)])).batches[0]


METHODS: dict[str, tuple[Callable[..., dict[str, Tensor]], dict[str, object], int]] = {
    "loss": (Objective.loss, {}, 200_000),
    "antithetic": (lambda target, toy, batch: target.loss(toy, paired(batch)), {}, 200_000),
    "measure": (Objective.measure, {"validation_times": 8}, 30_000),
    "measure once": (Objective.measure, {"validation_times": 1}, 200_000),
}


@pytest.mark.parametrize(("method", "options", "rows"), METHODS.values(), ids=METHODS.keys())
def test_the_bound_is_unbiased(method: Callable[..., dict[str, Tensor]], options: dict[str, object], rows: int) -> None:
    toy, target = ExactConditionals(), objective(**options)  # type: ignore[arg-type]
    batch = batch_of(toy_rows(toy, rows), lengths=(torch.arange(rows) % 50 > 0) + torch.full((rows,), LENGTH - 1))
    lengths = batch["length"] if method is Objective.measure else target.lengths(batch)
    off, deviation = relative_error(method(target, toy, batch)["nll"], toy.nll(batch["tokens"], lengths))
    assert deviation < 0.005
    assert abs(off) < 3 * deviation


def test_dividing_by_masked_tokens_would_fail_that_test() -> None:
    toy, target = ExactConditionals(), objective()
    batch = batch_of(toy_rows(toy, 100_000))
    found = target.loss(toy, batch)["nll"]
    masked = (toy.seen[-1] == TOY.mask).sum(1)
    wrong = LENGTH * found / masked.clamp(min=1)
    off, deviation = relative_error(wrong, toy.nll(batch["tokens"], batch["length"]))
    assert abs(off) > 10 * deviation


# ---- what is masked


class Recorder(nn.Module):
    """Records its inputs, and predicts nothing."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.seen: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(tokens)
        return torch.zeros(*tokens.shape, self.size)


def text_rows(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(seed))


def part(batch: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in batch.items()}


@pytest.mark.parametrize("method", [Objective.loss, Objective.measure])
def test_a_row_does_not_depend_on_its_batch(method: Callable[..., dict[str, Tensor]]) -> None:
    target, recorder = objective(BYTES), Recorder(BYTES.size)
    batch = batch_of(text_rows(12, 20), epoch=3)
    whole = method(target, recorder, batch)["nll"]
    shown = torch.stack(recorder.seen)
    for rows in (torch.tensor([7, 2, 11]), torch.tensor([0])):
        recorder.seen.clear()
        assert torch.equal(method(target, recorder, part(batch, rows))["nll"], whole[rows])
        assert torch.equal(torch.stack(recorder.seen), shown[:, rows])


def test_noise_follows_seed_and_epoch() -> None:
    tokens = text_rows(8, 32)
    shown = []
    for seed, epoch in ((1, 0), (2, 0), (1, 1), (1, VALIDATION_EPOCH)):
        recorder = Recorder(BYTES.size)
        objective(BYTES, seed=seed).loss(recorder, batch_of(tokens, epoch))
        shown.append(recorder.seen[0])
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(shown, 2))


def test_tokens_are_masked_with_the_probability_of_their_row() -> None:
    target, recorder = objective(BYTES, least=0.05), Recorder(BYTES.size)
    batch = batch_of(text_rows(200, 200))
    target.loss(recorder, batch)
    expected = 0.95 * target.times(batch) + 0.05
    deviation = (expected * (1 - expected) / 200).sqrt()
    masked = (recorder.seen[0] == BYTES.mask).double()
    assert float((((masked.mean(1) - expected) / deviation) ** 2).mean()) == pytest.approx(1.0, abs=0.25)
    assert float(masked.mean(0).std()) < 0.05, "no position is favoured"
    kept = recorder.seen[0] != BYTES.mask
    assert torch.equal(recorder.seen[0][kept], batch["tokens"][kept])


def test_times_are_uniform_and_antithetic() -> None:
    batch = batch_of(text_rows(20_000, 1))
    pairs, single = objective().times(paired(batch)), objective().times(batch)
    assert torch.equal(pairs[0::2] + pairs[1::2], torch.ones(10_000, dtype=torch.float64))
    for times in (pairs, single):
        deciles = torch.histc(times, bins=10, min=0, max=1)
        assert float(((deciles - 2000) ** 2 / 2000).sum()) < 40
    assert float(pairs.mean()) == pytest.approx(0.5, abs=1e-12)
    assert abs(float((single[0::2] + single[1::2]).std()) - (1 / 6) ** 0.5) < 0.02


def times_of(ids: np.ndarray, ranks: int, rows: int) -> dict[tuple[int, ...], float]:
    """The time of each row of a global batch that is split among ranks and into micro-batches."""
    found = {}
    for rank in range(ranks):
        spans = micro_batches(len(ids), rank, ranks, rows)
        shares = [ids[start:stop] if start < stop else ids[:1] for start, stop in spans]
        batches = [{"ids": torch.from_numpy(share)} for share in shares]
        for batch, (start, stop) in zip(pair_rows(MicroBatches(3, batches, {}, ids, spans)).batches, spans):
            times = objective().times(batch).tolist()
            assert len(times) == max(1, stop - start)
            if start < stop:
                found |= zip(map(tuple, batch["ids"].tolist()), times)
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 9), st.integers(0, 5), st.randoms(use_true_random=False))
def test_times_pair_the_rows_of_one_batch_however_it_is_split(
    size: int, ranks: int, rows: int, step: int, random: random.Random
) -> None:
    ids = Shuffled(100, size, seed=7).ids(step)
    times = times_of(ids, ranks, rows)
    assert len(times) == len(ids)
    left = sorted(times.values())
    alone = [t for t in left if not any(abs(1 - t - other) < 1e-12 for other in left)]
    assert len(alone) == len(ids) % 2, "all others have their counterpart in the same batch"
    assert times_of(ids[random.sample(range(len(ids)), len(ids))], 1, size) == times


def test_validation_measures_each_row_at_evenly_spread_times() -> None:
    target, recorder = objective(BYTES, validation_times=4, least=0.0), Recorder(BYTES.size)
    target.measure(recorder, batch_of(text_rows(100, 200), VALIDATION_EPOCH))
    for k, shown in enumerate(recorder.seen):
        share = (shown == BYTES.mask).double().mean(1)
        assert float(share.mean()) == pytest.approx((k + 0.5) / 4, abs=0.03)
        assert k / 4 - 0.15 < float(share.min())
        assert float(share.max()) < (k + 1) / 4 + 0.15


# ---- weights


def test_some_steps_read_only_the_beginning_of_all_their_rows() -> None:
    whole = TextRows(np.arange(1600) % 250, 16, pad=BYTES.eos)
    rows = objective(BYTES, cut_rows=0.1).training_rows(whole)
    found = [rows.of_step(step, np.arange(3)) for step in range(5000)]
    widths = np.array([each.width for each in found])
    assert (widths.min(), widths.max()) == (1, 16)
    assert float((widths < 16).mean()) == pytest.approx(0.1 * 15 / 16, abs=0.015)
    uncut = whole.rows(np.array([5, 99]))
    for step, other in zip(np.flatnonzero(widths < 16)[:20], (np.array([5, 99]), np.array([5]))):
        batch, width = found[step].rows(np.array([5, 99])), widths[step]
        assert torch.equal(batch["tokens"], uncut["tokens"][:, :width])
        assert batch["length"].tolist() == [width, width]
        assert rows.of_step(step, other).width == width, "the same for any rows"
    assert objective(BYTES, cut_rows=1.0).count({**batch, "ids": torch.zeros(2, 2)})["nll"].tolist() == [width, width]


def test_no_step_is_cut_unless_asked_and_no_answer_ever() -> None:
    rows, chats = TextRows(np.arange(160), 16, pad=BYTES.eos), AnswerRows(np.arange(9), np.array([0, 9, 4]), 64, 257)
    for step in range(99):
        assert objective(cut_rows=0.0).training_rows(rows).of_step(step, np.arange(2)).width == 16
        found = objective(sft=True, cut_rows=1.0, wide_steps=0.5).training_rows(chats).of_step(step, np.zeros(1))
        assert found.width >= 16


def test_some_steps_of_chats_have_room_left_behind_the_longest_answer() -> None:
    chats = AnswerRows(np.arange(90), np.array([0, 90, 4]), 300, pad=BYTES.eos)
    rows = objective(sft=True, wide_steps=0.5).training_rows(chats)
    widths = [rows.of_step(step, np.zeros(1)).width for step in range(4000)]
    wide = {width: widths.count(width) / 4000 for width in (96, 112, 128, 160, 192, 224, 256, 300)}
    assert sum(wide.values()) == pytest.approx(1)
    assert wide.pop(96) == pytest.approx(0.5 + 0.5 / 8, abs=0.03)
    assert all(share == pytest.approx(0.5 / 8, abs=0.02) for share in wide.values())
    batch = rows.of_step(widths.index(224), np.zeros(1)).rows(np.zeros(1))
    assert batch["tokens"].shape == (1, 224) and bool((batch["tokens"][0, 90:] == BYTES.eos).all())


def test_padding_after_a_text_neither_scores_nor_changes() -> None:
    target, recorder = objective(BYTES), Recorder(BYTES.size)
    batch = batch_of(text_rows(50, 16), lengths=torch.full((50,), 12))
    first = target.loss(recorder, batch)["nll"]
    assert bool((recorder.seen[0][:, 12:] == BYTES.eos).all())
    behind = torch.arange(16) >= 12
    changed = {**batch, "tokens": torch.where(behind, 7, batch["tokens"])}
    assert torch.equal(target.loss(recorder, changed)["nll"], first)
    assert target.count(batch)["nll"].tolist() == [12] * 50


def small_network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=16))


def test_a_row_without_masked_tokens_is_a_zero_that_depends_on_every_parameter() -> None:
    network = small_network()
    nothing = batch_of(text_rows(3, 8), lengths=torch.zeros(3, dtype=torch.int64))
    found = objective(BYTES).loss(network, nothing)["nll"]
    assert found.tolist() == [0, 0, 0]
    found.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())


def test_the_loss_is_the_weighted_cross_entropy_of_the_masked_tokens() -> None:
    network, target = small_network().double(), objective(BYTES)
    batch = batch_of(text_rows(5, 12))
    recorder = Recorder(BYTES.size)
    target.loss(recorder, batch)
    with torch.no_grad():
        logits = network(recorder.seen[0]).log_softmax(-1)
        found = target.loss(network, batch)["nll"]
    assert found.dtype == torch.float64
    for row in range(5):
        share = 0.999 * float(target.times(batch)[row]) + 0.001
        masked = [i for i in range(12) if recorder.seen[0][row, i] == BYTES.mask]
        by_hand = sum(-float(logits[row, i, batch["tokens"][row, i]]) / share for i in masked)
        assert float(found[row]) == pytest.approx(by_hand, rel=1e-9)


def test_cross_entropy_is_taken_in_float32_under_autocast() -> None:
    network, batch = small_network(), batch_of(text_rows(4, 12))
    plain = objective(BYTES).loss(network, batch)["nll"]
    with torch.autocast("cpu", torch.bfloat16):
        cast = objective(BYTES).loss(network, batch)["nll"]
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, rtol=0.02, atol=0.0)


# ---- answers to prompts


def questions(rows: int = 40, length: int = 16) -> dict[str, Tensor]:
    return batch_of(text_rows(rows, length), prompts=torch.arange(rows) % (length + 1))


@pytest.mark.parametrize("method", [Objective.loss, Objective.measure])
def test_a_prompt_is_never_masked_and_never_counted(method: Callable[..., dict[str, Tensor]]) -> None:
    target, recorder, batch = objective(BYTES, sft=True, norm="token"), Recorder(BYTES.size), questions()
    found = method(target, recorder, batch)["nll"]
    given = torch.arange(16) < batch["prompt"][:, None]
    for shown in recorder.seen:
        assert torch.equal(shown[given], batch["tokens"][given])
        assert bool((shown[~given] == BYTES.mask).any())
    assert torch.equal(target.count(batch)["nll"], 16 - batch["prompt"])
    assert torch.equal(target.measure_count(batch)["nll"], 16 - batch["prompt"])
    masked = torch.stack([shown == BYTES.mask for shown in recorder.seen]).any(0).any(1)
    assert torch.equal(found > 0, masked)


def padded_answers(rows: int, length: int = 10) -> dict[str, Tensor]:
    """Answers of tokens 4 to `length`, behind which there is padding."""
    tokens = text_rows(rows, 16)
    tokens[:, length - 1 :] = BYTES.eos
    return batch_of(tokens, lengths=torch.full((rows,), length), prompts=torch.full((rows,), 4))


def test_padding_after_an_answer_is_masked_and_counted_as_answer_in_training() -> None:
    target, recorder, batch = objective(BYTES, sft=True, norm="token"), Recorder(BYTES.size), padded_answers(300)
    target.loss(recorder, batch)
    share = (recorder.seen[0] == BYTES.mask).double().mean(0)
    assert float(share[10:].min()) > 0.4 and float(share[10:].max()) < 0.6
    assert target.count(batch)["nll"].tolist() == [12] * 300
    assert target.count(batch)["tokens"].tolist() == [10] * 300, "speed is that of the text"


def test_padding_after_an_answer_is_neither_shown_nor_counted_in_validation() -> None:
    target, recorder, batch = objective(BYTES, sft=True), Recorder(BYTES.size), padded_answers(300)
    found = target.measure(recorder, batch)["nll"]
    for shown in recorder.seen:
        assert bool((shown[:, 10:] == BYTES.mask).all()), "the end would tell how long the answer is"
        assert 0 < float((shown[:, 9] == BYTES.mask).double().mean()) < 1, "the answer's own end token counts"
    assert target.measure_count(batch)["nll"].tolist() == [6] * 300
    changed = {**batch, "tokens": torch.where(torch.arange(16) < 10, batch["tokens"], 7)}
    assert torch.equal(target.measure(recorder, changed)["nll"], found)


def test_validation_of_padded_answers_is_unbiased() -> None:
    toy, rows = ExactConditionals(), 30_000
    lengths = 2 + torch.arange(rows) % (LENGTH - 1)
    batch = batch_of(toy_rows(toy, rows), lengths=lengths, prompts=torch.zeros(rows, dtype=torch.int64))
    found = objective(sft=True).measure(toy, batch)["nll"]
    off, deviation = relative_error(found, toy.nll(batch["tokens"], lengths))
    assert deviation < 0.005
    assert abs(off) < 3 * deviation


def test_each_norm_is_the_mean_that_it_names() -> None:
    batch, recorder = questions(), Recorder(BYTES.size)
    found = {}
    for norm in ("token", "sequence", "batch"):
        target = objective(BYTES, sft=True, norm=norm)
        found[norm] = target.loss(recorder, batch)["nll"].sum() / target.count(batch)["nll"].sum()
    sums, answers = objective(BYTES, sft=True, norm="batch").loss(recorder, batch)["nll"], 16 - batch["prompt"]
    some = answers > 0
    assert float(found["token"]) == pytest.approx(float(sums.sum() / answers.sum()))
    assert float(found["sequence"]) == pytest.approx(float((sums[some] / answers[some]).mean()))
    assert float(found["batch"]) == pytest.approx(float(sums.mean()))


def test_rows_are_means_of_their_own_only_in_fine_tuning() -> None:
    assert objective().norm == "token"
    assert objective(sft=True).norm == "sequence"
    assert objective(sft=True, norm="token").norm == "token"


def test_prompts_without_an_answer_are_a_zero_that_depends_on_every_parameter() -> None:
    network, batch = small_network(), batch_of(text_rows(3, 8), prompts=torch.full((3,), 8))
    for norm in ("token", "sequence", "batch"):
        network.zero_grad()
        found = objective(BYTES, sft=True, norm=norm).loss(network, batch)["nll"]
        assert found.tolist() == [0, 0, 0]
        found.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in network.parameters())
    assert objective(BYTES, sft=True).count(batch)["nll"].tolist() == [0, 0, 0]


def test_metrics_of_tokens_that_are_several_bytes() -> None:
    assert nll_metrics(3.0, bytes_per_token=4.0)["bits_per_byte"] == pytest.approx(
        nll_metrics(3.0)["bits_per_byte"] / 4
    )
    assert nll_metrics(3.0, bytes_per_token=4.0)["perplexity"] == nll_metrics(3.0)["perplexity"]


def test_metrics_of_a_uniform_guess_over_bytes() -> None:
    found = nll_metrics(5.545177444479562)
    assert found["bits_per_byte"] == pytest.approx(8)
    assert found["perplexity"] == pytest.approx(256)
