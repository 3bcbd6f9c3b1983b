"""The objective: an unbiased bound, the same for any split of a batch, weighted by all tokens."""

import itertools
from collections.abc import Callable

import pytest
import torch
from exact_toy import LENGTH, TOY, ExactConditionals
from torch import Tensor, nn

from samestep.data.order import VALIDATION_EPOCH
from samestep.data.tokenizer.vocabulary import BYTES, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.objective import Objective, ObjectiveConfig, nll_metrics


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


METHODS: dict[str, tuple[Callable[..., dict[str, Tensor]], dict[str, object], int]] = {
    "loss": (Objective.loss, {"antithetic": False}, 200_000),
    "antithetic": (Objective.loss, {"antithetic": True}, 200_000),
    "cut rows": (Objective.loss, {"cut_rows": 0.5}, 300_000),
    "measure": (Objective.measure, {"validation_times": 8}, 30_000),
    "measure once": (Objective.measure, {"validation_times": 1, "cut_rows": 1.0}, 200_000),
}


@pytest.mark.parametrize(("method", "options", "rows"), METHODS.values(), ids=METHODS.keys())
def test_the_bound_is_unbiased(method: Callable[..., dict[str, Tensor]], options: dict[str, object], rows: int) -> None:
    toy, target = ExactConditionals(), objective(**options)  # type: ignore[arg-type]
    batch = batch_of(toy_rows(toy, rows), lengths=(torch.arange(rows) % 50 > 0) + torch.full((rows,), LENGTH - 1))
    lengths = target.lengths(batch) if method is Objective.loss else batch["length"]
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
    target, recorder = objective(BYTES, cut_rows=0.3), Recorder(BYTES.size)
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
    expected = 0.95 * target.times(batch["ids"]) + 0.05
    deviation = (expected * (1 - expected) / 200).sqrt()
    masked = (recorder.seen[0] == BYTES.mask).double()
    assert float((((masked.mean(1) - expected) / deviation) ** 2).mean()) == pytest.approx(1.0, abs=0.25)
    assert float(masked.mean(0).std()) < 0.05, "no position is favoured"
    kept = recorder.seen[0] != BYTES.mask
    assert torch.equal(recorder.seen[0][kept], batch["tokens"][kept])


def test_times_are_uniform_and_antithetic() -> None:
    ids = batch_of(text_rows(20_000, 1))["ids"]
    paired, single = objective(antithetic=True).times(ids), objective(antithetic=False).times(ids)
    assert torch.equal(paired[0::2] + paired[1::2], torch.ones(10_000, dtype=torch.float64))
    for times in (paired, single):
        deciles = torch.histc(times, bins=10, min=0, max=1)
        assert float(((deciles - 2000) ** 2 / 2000).sum()) < 40
    assert float(paired.mean()) == pytest.approx(0.5, abs=1e-12)
    assert abs(float((single[0::2] + single[1::2]).std()) - (1 / 6) ** 0.5) < 0.02


def test_validation_measures_each_row_at_evenly_spread_times() -> None:
    target, recorder = objective(BYTES, validation_times=4, least=0.0), Recorder(BYTES.size)
    target.measure(recorder, batch_of(text_rows(100, 200), VALIDATION_EPOCH))
    for k, shown in enumerate(recorder.seen):
        share = (shown == BYTES.mask).double().mean(1)
        assert float(share.mean()) == pytest.approx((k + 0.5) / 4, abs=0.03)
        assert k / 4 - 0.15 < float(share.min())
        assert float(share.max()) < (k + 1) / 4 + 0.15


# ---- weights


def test_rows_are_cut_as_often_as_asked_and_weigh_what_is_left() -> None:
    target = objective(BYTES, cut_rows=0.1)
    batch = batch_of(text_rows(20_000, 16))
    lengths = target.count(batch)["nll"]
    assert lengths.dtype == torch.int64
    assert int(lengths.min()) == 1
    assert int(lengths.max()) == 16
    assert float((lengths < 16).double().mean()) == pytest.approx(0.1 * 15 / 16, abs=0.01)
    assert torch.equal(target.measure_count(batch)["nll"], batch["length"])


def test_what_is_cut_off_is_padding_that_neither_scores_nor_shows() -> None:
    target, recorder = objective(BYTES, cut_rows=1.0), Recorder(BYTES.size)
    batch = batch_of(text_rows(50, 16), lengths=torch.full((50,), 12))
    first = target.loss(recorder, batch)["nll"]
    behind = torch.arange(16) >= target.count(batch)["nll"][:, None]
    assert bool((target.count(batch)["nll"] <= 12).all())
    assert bool((recorder.seen[0][behind] == BYTES.eos).all())
    changed = {**batch, "tokens": torch.where(behind, 7, batch["tokens"])}
    assert torch.equal(target.loss(recorder, changed)["nll"], first)


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
        share = 0.999 * float(target.times(batch["ids"])[row]) + 0.001
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


def test_padding_after_an_answer_is_masked_and_counted_as_answer() -> None:
    tokens = text_rows(300, 16)
    tokens[:, 10:] = BYTES.eos
    batch = batch_of(tokens, prompts=torch.full((300,), 4))
    target, recorder = objective(BYTES, sft=True, cut_rows=1.0), Recorder(BYTES.size)
    target.loss(recorder, batch)
    share = (recorder.seen[0] == BYTES.mask).double().mean(0)
    assert float(share[10:].min()) > 0.4
    assert torch.equal(target.lengths(batch), batch["length"]), "an answer is never cut"


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
    assert list(nll_metrics(3.0, bytes_per_token=None)) == ["nll", "perplexity"], (
        "bits of filling per byte of text mean nothing"
    )


def test_metrics_of_a_uniform_guess_over_bytes() -> None:
    found = nll_metrics(5.545177444479562)
    assert found["bits_per_byte"] == pytest.approx(8)
    assert found["perplexity"] == pytest.approx(256)
