"""Which optimizer a learner gets, and what is refused."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep import SGD, AdamW, AdamW8bit, Muon, UserError
from samestep.train.learner.optimizer import LearnerOptimizer, OptimSettings
from samestep.train.learner.optimizers.choices import CustomOptimizer
from samestep.train.learner.optimizers.muon import hidden_matrices, orthogonalized
from samestep.train.record.config import Config, Distributed
from samestep.world.world import World
from toys import SETTINGS, Net, Points, default_dtype, feed_of, learner_of, made, weights_of


def given(chosen: Any = None, decay: float | None = None, **config: Any) -> OptimSettings:
    """A configuration, and what a recipe gives."""
    return OptimSettings.of(Config(**config)).given(chosen, None, decay, None, None)


def test_the_configuration_names_an_optimizer_and_a_recipe_may_choose_another() -> None:
    assert given().optimizer == AdamW()
    assert given(optimizer="sgd").optimizer == SGD(momentum=0.9)
    assert given(optimizer="sgd", momentum=0.5).optimizer == SGD(momentum=0.5)
    assert given(optimizer="muon").optimizer == Muon(momentum=0.95)
    assert given(optimizer="adamw8bit").optimizer == AdamW8bit()
    chosen = OptimSettings.of(Config(optimizer="muon")).given(SGD(), None, 0.3, 0.0, 0.7)
    assert (chosen.optimizer, chosen.weight_decay, chosen.clip, chosen.clip_value) == (SGD(), 0.3, 0.0, 0.7)


def test_a_recipes_own_optimizer_keeps_its_weight_decay() -> None:
    def decays(settings: OptimSettings) -> list[float]:
        groups = LearnerOptimizer(made(Net), settings).inner.param_groups
        return sorted({group["weight_decay"] for group in groups})

    assert decays(given(lambda params: torch.optim.Adagrad(params, weight_decay=0.25))) == [0.0, 0.25]
    assert decays(given(lambda params: torch.optim.Adagrad(params, weight_decay=0.25), decay=0.5)) == [0.0, 0.5]
    assert decays(given(SGD())) == [0.0, 0.1]


def test_betas_come_from_the_configuration_unless_they_are_given() -> None:
    for optimizer, group in ((AdamW(beta2=0.5), 0), (Muon(beta2=0.5), 1)):
        made_of = LearnerOptimizer(made(Net), given(optimizer, beta1=0.8, adam_eps=1e-5))._optimizers[group]
        assert made_of.defaults["betas"] == (0.8, 0.5)
        assert made_of.defaults["eps"] == 1e-5


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGD(momentum=1.0), "SGD's momentum must be at least 0 and below 1, but is 1.0"),
        (lambda: SGD(momentum=0.0, nesterov=True), "nesterov needs a momentum above 0"),
        (lambda: AdamW(beta1=1.5), "beta1 must be at least 0 and below 1, but is 1.5"),
        (lambda: Muon(iterations=0), "at least one iteration"),
        (lambda: Muon(scaling="none"), "Muon's scaling is 'adamw' or 'original', not 'none'"),  # type: ignore[arg-type]
        (lambda: given(clip_value=-1.0), "clip_value must be a number of at least 0, not -1.0"),
        (lambda: given("adam"), "optimizer='adam' is no optimizer; give AdamW"),
        (lambda: given(AdamW), "is no optimizer; give AdamW"),
        (lambda: LearnerOptimizer(made(Net), given(Muon(adamw=["hed.*"]))), "'hed.*' matches no trainable parameter"),
        (lambda: LearnerOptimizer(nn.LayerNorm(3), given(Muon())), "the network has none to train; use AdamW"),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert sentence in str(refused.value)


class Repeating(torch.optim.Optimizer):
    """Needs to evaluate the loss again."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 0.0})

    def step(self, closure: Callable[[], float]) -> None:  # type: ignore[override]
        closure()


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (Repeating, "Repeating evaluates the loss several times in a step"),
        (torch.optim.LBFGS, "cannot be made: LBFGS doesn't support per-parameter options"),
        (lambda params: None, "must be a torch.optim.Optimizer, but is a NoneType"),
        (lambda params: torch.optim.SGD(params[:1]), "SGD does not have the learner's parameters"),
        (lambda params: torch.optim.SGD(params, momentum=-1), "cannot be made: Invalid momentum value"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused(factory: Any, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        LearnerOptimizer(made(Net), given(factory))
    assert sentence in str(refused.value)


def test_eight_bits_need_torchao_and_no_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = given(optimizer="adamw8bit", distributed=Distributed(strategy="fsdp"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torchao.optim", None)
        with pytest.raises(UserError, match=r'pip install "samestep\[torchao\]"'):
            LearnerOptimizer(made(Net), given(AdamW8bit()))
    pytest.importorskip("torchao")
    with pytest.raises(UserError, match=r"would depend on the number of ranks; use ddp, or another optimizer"):
        LearnerOptimizer(made(Net), sharded)


class Model(nn.Module):
    """Embeddings, a convolution, hidden layers and a head of as many outputs as the vocabulary has words."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8, 8), nn.Embedding(8, 8)
        self.conv = nn.Conv1d(8, 8, 3)
        self.hidden = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm((2, 8))
        self.head = nn.Linear(8, 8)
        if is_tied:
            self.head.weight = self.words.weight


@pytest.mark.parametrize("is_tied", [False, True])
def test_muon_trains_hidden_matrices_only(is_tied: bool) -> None:
    model = Model(is_tied)
    hidden = hidden_matrices(model)
    found = {name for name, parameter in model.named_parameters() if id(parameter) in hidden}
    assert found == {"conv.weight", "hidden.0.weight", "hidden.1.weight"}


def test_muon_finds_the_head_of_a_library_model() -> None:
    class Library(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head, self.last = nn.Linear(4, 9), nn.Linear(4, 4)

        def get_output_embeddings(self) -> nn.Module:
            return self.lm_head

    model = nn.ModuleDict({"inside": Library()})
    assert hidden_matrices(model) == {id(model["inside"].last.weight)}


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5)])
def test_an_orthogonalized_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalized(matrix, 5))
    assert values.min() > 0.5 and values.max() < 1.3
    assert not orthogonalized(torch.zeros(shape), 5).any()
    assert orthogonalized(matrix.bfloat16(), 5).dtype == torch.float32


def test_muon_flattens_a_convolution() -> None:
    model = made(lambda: nn.Conv1d(4, 6, 3, bias=False))
    before = model.weight.detach().clone()
    optimizer = LearnerOptimizer(model, given(Muon(scaling="original"), decay=0.0))
    model.weight.grad = torch.randn_like(model.weight)
    [group] = optimizer.inner.param_groups
    group["lr"] = 0.1
    optimizer.inner.step()
    values = torch.linalg.svdvals((before - model.weight.detach()).flatten(1)) / 0.1
    assert values.min() > 0.5 and values.max() < 1.3


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), SGD(momentum=0.0), Muon(), CustomOptimizer(torch.optim.Adagrad)])
def test_parameters_in_bfloat16(optimizer: Any) -> None:
    world = World.single()
    settings = OptimSettings(SETTINGS.betas, SETTINGS.eps, 0.1, 0.5, clip_value=0.5, optimizer=optimizer)

    def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"error": (module(batch["x"].bfloat16(), batch["tokens"]) - batch["y"]).square().sum(1)}

    with default_dtype(torch.float32):
        learner = learner_of(made(Net).bfloat16(), world, "ddp", settings=settings, rate=lambda step: 0.1)
        feed = feed_of(Points(8), world, 8, 3, steps=1)
        learner.update(feed[0], loss)
    weights = weights_of(learner)
    assert all(value.dtype == torch.bfloat16 and value.isfinite().all() for value in weights.values())
    assert not torch.equal(weights["first.weight"], made(Net).bfloat16().first.weight)
