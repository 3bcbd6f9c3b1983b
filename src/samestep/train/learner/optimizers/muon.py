"""Muon: momentum whose matrix is orthogonalised before it is applied, for the hidden matrices of a network.

The idea, and the coefficients of the iteration, are Keller Jordan's (kellerjordan.github.io/posts/muon); the scale that
matches AdamW's is that of "Muon is Scalable for LLM Training" (arXiv 2502.16982). torch.optim.Muon computes in
bfloat16 and orthogonalises each rank's shard for itself, so it would be another run on another number of ranks. Here
the whole matrix is orthogonalised, in float64 where the parameters are and in float32 otherwise.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from samestep.parallel.wrap import full_tensor, local
from samestep.train.learner.optimizers.groups import EMBEDDINGS

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the odd polynomial that each iteration applies to the singular values: steep at 0, near 1 everywhere else."""
_SMALLEST_NORM = 1e-7
Scaling = Literal["adamw", "original"]


class MuonOptimizer(torch.optim.Optimizer):
    """Muon over matrices; what has more dimensions is one matrix with a row for each element of the first."""

    def __init__(
        self, params: Iterable[Any], *, momentum: float, nesterov: bool, iterations: int, scaling: Scaling
    ) -> None:
        defaults = {"lr": 0.0, "weight_decay": 0.0, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, {**defaults, "iterations": iterations, "scaling": scaling})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step. Of a sharded matrix the momentum is gathered, so all ranks must step together."""
        assert closure is None, "Muon evaluates nothing again"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        momentum, gradient = self.state[parameter]["momentum_buffer"], parameter.grad
        assert gradient is not None
        momentum.lerp_(gradient, 1 - group["momentum"])
        moved = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        whole = orthogonalized(full_tensor(moved).flatten(1), group["iterations"])
        rate = group["lr"] * scale_of(whole, group["scaling"])
        own = local(parameter)
        own.mul_(1 - group["lr"] * group["weight_decay"])
        own.add_(_own_part(whole.view(parameter.shape), parameter).to(own.dtype), alpha=-rate)


def orthogonalized(matrix: Tensor, iterations: int) -> Tensor:
    """About the nearest matrix with orthonormal rows or columns (Newton-Schulz): singular values end near 1."""
    a, b, c = _COEFFICIENTS
    x = matrix if matrix.dtype == torch.float64 else matrix.float()
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x  # the products below are of the smaller side
    x = x / x.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T.contiguous() if is_tall else x


def scale_of(matrix: Tensor, scaling: Scaling) -> float:
    """The factor of an orthogonalised matrix: `adamw` gives its elements the size that AdamW's updates have."""
    rows, columns = matrix.shape
    return 0.2 * math.sqrt(max(rows, columns)) if scaling == "adamw" else math.sqrt(max(1.0, rows / columns))


def hidden_matrices(module: nn.Module) -> set[int]:
    """The parameters that Muon is for, by identity: matrices and convolutions, but not those of embeddings, norms and
    the output head."""
    heads = _output_heads(module)
    found: set[int] = set()
    others: set[int] = set()
    for part in module.modules():
        is_other = part in heads or isinstance(part, (*EMBEDDINGS, nn.LayerNorm, nn.RMSNorm))
        for name, parameter in part.named_parameters(recurse=False):
            is_matrix = parameter.ndim >= 2 and not name.endswith("bias") and not is_other
            (found if is_matrix else others).add(id(parameter))
    return found - others


def _output_heads(module: nn.Module) -> list[nn.Module]:
    """What a library's model names as its head; and the last linear layer, if it has an output for each row of an
    embedding. Any other head looks like a hidden layer."""
    finders: list[Any] = [part for part in module.modules() if hasattr(part, "get_output_embeddings")]
    rows = {part.num_embeddings for part in module.modules() if isinstance(part, EMBEDDINGS)}
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1:]
    return [part.get_output_embeddings() for part in finders] + [part for part in last if part.out_features in rows]


def _own_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has in full, cut as the parameter is; without communication."""
    if not isinstance(parameter, DTensor):
        return whole
    everywhere = DTensor.from_local(whole, parameter.device_mesh, _replicated(parameter), run_check=False)
    return everywhere.redistribute(placements=parameter.placements).to_local()


def _replicated(parameter: DTensor) -> Sequence[Replicate]:
    return [Replicate()] * parameter.device_mesh.ndim
