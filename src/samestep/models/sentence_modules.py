"""What follows the transformer of a sentence encoder: pooling, and stock modules of sentence-transformers behind it.

Each module has the parameter names, the settings and the folder name that sentence-transformers gives it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.deferred_init import Linear, mark_unset
from samestep.models.wide import wide_type

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The ways to make one vector of those of the tokens, as sentence-transformers names them."""
_OLDER_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Settings of earlier versions, in the order in which several of them are concatenated."""


class Pooling(nn.Module):
    """One vector for each row of token vectors; several ways are concatenated."""

    def __init__(self, width: int, modes: Sequence[str] = ("mean",)) -> None:
        super().__init__()
        self.width, self.modes = width, tuple(modes)
        self.dim = width * len(self.modes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """`tokens` is [rows, length, width]; `mask` ([rows, length], 0 or 1) has at least one 1 in every row."""
        return torch.cat([_pool(mode, tokens, mask) for mode in self.modes], dim=-1)

    @property
    def settings(self) -> dict[str, Any]:
        """As sentence-transformers of any version reads them."""
        older = {name: mode in self.modes for name, mode in _OLDER_POOLINGS.items()}
        usual = tuple(mode for mode in _OLDER_POOLINGS.values() if mode in self.modes)
        own_order = {} if self.modes == usual else {"pooling_mode": list(self.modes)}
        return {"word_embedding_dimension": self.width, **older, **own_order, "include_prompt": True}

    @classmethod
    def read(cls, settings: Mapping[str, Any], where: str) -> "Pooling":
        """From its config.json, of earlier versions too."""
        width = _integer(settings, ("embedding_dimension", "word_embedding_dimension"), where)
        given = settings.get("pooling_mode", [mode for name, mode in _OLDER_POOLINGS.items() if settings.get(name)])
        modes = list(given) or ["mean"] if isinstance(given, list) else [given]
        unknown = [mode for mode in modes if mode not in POOLINGS]
        if unknown or len(modes) > len(POOLINGS):
            raise UserError(f"Use a model that pools by one of {', '.join(POOLINGS)}; {where} names {given!r:.100}.")
        if settings.get("include_prompt") is False:
            raise UserError(
                f"Use a model whose pooling includes the prompt; {where} has include_prompt=false, which is not "
                "supported."
            )
        return cls(width, modes)


def _pool(mode: str, tokens: Tensor, mask: Tensor) -> Tensor:
    """One way of pooling; sums of small types are taken in float32, as sentence-transformers does."""
    exact = wide_type(tokens.dtype)
    positions = torch.arange(mask.shape[1], device=mask.device)
    live = mask.unsqueeze(-1)
    if mode == "cls":
        return _token_at(tokens, torch.where(mask > 0, positions, mask.shape[1]).amin(1))
    if mode == "lasttoken":
        return _token_at(tokens, torch.where(mask > 0, positions, -1).amax(1))
    if mode == "max":
        return tokens.masked_fill(live == 0, -torch.inf).amax(1)
    weights = live.to(exact)
    if mode == "weightedmean":
        weights = weights * mask.cumsum(1).unsqueeze(-1)
    # Chosen, not multiplied: what stands at padding may be anything.
    total = (torch.where(live > 0, tokens, 0).to(exact) * weights).sum(1)
    weight = weights.sum(1)
    return (total / (weight.sqrt() if mode == "mean_sqrt_len_tokens" else weight)).to(tokens.dtype)


def _token_at(tokens: Tensor, position: Tensor) -> Tensor:
    """The vector at one position of each row."""
    index = position.clamp(0, tokens.shape[1] - 1).view(-1, 1, 1).expand(-1, 1, tokens.shape[2])
    return tokens.gather(1, index).squeeze(1)


class Normalize(nn.Module):
    """Vectors of length 1."""

    kind = "Normalize"

    def forward(self, vectors: Tensor) -> Tensor:
        """Divide each by its length; one of zeros stays."""
        return F.normalize(vectors, dim=-1)

    @property
    def settings(self) -> dict[str, Any]:
        return {}


class Dense(nn.Module):
    """A linear layer and an activation."""

    kind = "Dense"

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, activation: type[nn.Module] = nn.Identity):
        super().__init__()
        self.dim = outputs
        self.linear = Linear(inputs, outputs, bias=bias)
        self.activation = activation()
        mark_unset(self)

    def forward(self, vectors: Tensor) -> Tensor:
        mapped: Tensor = self.activation(self.linear(vectors))
        return mapped

    @property
    def settings(self) -> dict[str, Any]:
        """As sentence-transformers reads them."""
        kind = type(self.activation)
        return {
            "in_features": self.linear.in_features,
            "out_features": self.dim,
            "bias": self.linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__qualname__}",
        }

    @classmethod
    def read(cls, settings: Mapping[str, Any], where: str) -> "Dense":
        """From its config.json; nothing but an activation of torch is ever imported."""
        if settings.get("use_residual"):
            raise UserError(f"Use a model whose Dense has no residual; {where} has use_residual=true.")
        for key in ("module_input_name", "module_output_name"):
            if settings.get(key) not in (None, "sentence_embedding"):
                raise UserError(
                    f"Use a model whose Dense maps the sentence's vector; {where} has {key}={settings[key]!r}."
                )
        name = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
        activation = getattr(nn, str(name).rpartition(".")[2], None) if str(name).startswith("torch.nn.") else None
        if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
            raise UserError(f"Use a model whose Dense has an activation of torch.nn; {where} names {name!r}.")
        inputs, outputs = (_integer(settings, (key,), where) for key in ("in_features", "out_features"))
        return cls(inputs, outputs, bias=bool(settings.get("bias", True)), activation=activation)


class LayerNorm(nn.Module):
    """A layer norm with weight and bias."""

    kind = "LayerNorm"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.norm = nn.LayerNorm(dim)

    def forward(self, vectors: Tensor) -> Tensor:
        mapped: Tensor = self.norm(vectors)
        return mapped

    @property
    def settings(self) -> dict[str, Any]:
        """As sentence-transformers reads them."""
        return {"dimension": self.dim}

    @classmethod
    def read(cls, settings: Mapping[str, Any], where: str) -> "LayerNorm":
        """From its config.json."""
        return cls(_integer(settings, ("dimension",), where))


HeadModule = Normalize | Dense | LayerNorm
"""What may follow the pooling."""


def _integer(settings: Mapping[str, Any], names: Sequence[str], where: str) -> int:
    """The first of these settings that is there."""
    found = next((settings[name] for name in names if name in settings), None)
    if not isinstance(found, int) or found < 1:
        raise UserError(f"Fetch or copy {where} again; it needs a number above 0 as {names[0]}, and has {found!r}.")
    return found
