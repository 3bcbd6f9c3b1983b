"""AdamW with decay groups."""

import copy

import pytest
import torch
from torch import nn

from samestep.train.learner.optimizer import LearnerOptimizer, OptimSettings
from samestep.train.record.config import Config
from toys import DECAYED, SETTINGS, Net, default_dtype, made


class Everything(nn.Module):
    """All kinds of parameters, one of them shared and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.bag = nn.EmbeddingBag(7, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.layer_norm, self.group_norm = nn.LayerNorm((2, 4)), nn.GroupNorm(2, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight
        self.position = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def adamw(module: nn.Module, settings: OptimSettings) -> torch.optim.Optimizer:
    """torch's optimizer of a module."""
    return LearnerOptimizer(module, settings).inner


def groups_of(module: nn.Module, settings: OptimSettings = SETTINGS) -> dict[str, float]:
    """The decay of every parameter, by name; each must be in one group."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found: dict[str, float] = {}
    for group in adamw(module, settings).param_groups:
        for parameter in group["params"]:
            assert names[id(parameter)] not in found
            found[names[id(parameter)]] = group["weight_decay"]
    return found


def test_decay_falls_on_matrices_only() -> None:
    decayed = {name for name, decay in groups_of(Everything()).items() if decay == SETTINGS.weight_decay}
    plain = {name for name, decay in groups_of(Everything()).items() if decay == 0}
    assert decayed == {"conv.weight", "attention.in_proj_weight", "attention.out_proj.weight"}
    assert plain == {
        *("table.weight", "bag.weight", "conv.bias", "head.bias", "position"),  # head.weight is the table
        *(f"{norm}.{part}" for norm in ("layer_norm", "group_norm") for part in ("weight", "bias")),
        *("attention.in_proj_bias", "attention.out_proj.bias"),
    }
    assert {name for name, decay in groups_of(Net()).items() if decay} == set(DECAYED)


def test_a_module_of_one_kind_has_one_group() -> None:
    assert len(adamw(nn.LayerNorm(3), SETTINGS).param_groups) == 1
    assert len(adamw(nn.Linear(3, 3, bias=False), SETTINGS).param_groups) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_torchs_adamw(dtype: torch.dtype) -> None:
    with default_dtype(dtype):
        ours = made(Net)
        theirs = copy.deepcopy(ours)
        fused = adamw(ours, SETTINGS)
        named = dict(theirs.named_parameters())
        plain = torch.optim.AdamW(
            [
                {"params": [p for n, p in named.items() if n in DECAYED], "weight_decay": SETTINGS.weight_decay},
                {"params": [p for n, p in named.items() if n not in DECAYED], "weight_decay": 0.0},
            ],
            betas=SETTINGS.betas,
            eps=SETTINGS.eps,
            foreach=False,
        )
        for step in range(5):
            for optimizer, module in ((fused, ours), (plain, theirs)):
                x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
                module(x, torch.arange(6) % 5).square().sum().backward()
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 / (step + 1)
                optimizer.step()
                optimizer.zero_grad()
    rtol, atol = (1e-12, 1e-14) if dtype == torch.float64 else (1e-5, 1e-6)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=rtol, atol=atol)


def test_adams_state_is_there_from_the_start() -> None:
    module = Everything()
    optimizer = adamw(module, SETTINGS)
    for parameter in module.parameters():
        if not parameter.requires_grad:
            assert parameter not in optimizer.state
            continue
        state = optimizer.state[parameter]
        assert float(state["step"]) == 0
        assert all(state[name].shape == parameter.shape and not state[name].any() for name in ("exp_avg", "exp_avg_sq"))


def test_settings_come_from_the_config() -> None:
    config = Config(beta1=0.1, beta2=0.2, adam_eps=0.3, weight_decay=0.4, clip=0.5)
    assert OptimSettings.of(config) == OptimSettings((0.1, 0.2), 0.3, 0.4, 0.5)
