"""Networks whose weights are drawn parameter by parameter, by `init_parameter`, and by nothing else: one seed gives one
network, and a sharded one can be drawn without being in memory in full."""

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer that draws no weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


class Embedding(nn.Embedding):
    """An embedding that draws no weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


@torch.no_grad()
def mark_unset(network: nn.Module) -> None:
    """Let a network whose weights are never set give NaN, not numbers. One value each: other memory stays untouched."""
    for weight in network.parameters():
        if not weight.is_meta:
            weight.view(-1)[:1] = torch.nan


class DeferredInit(nn.Module):
    """A network of such layers."""

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw fresh weights from torch's generator; call it again after a build on the meta device and `to_empty`."""
        for name, weight in self.named_parameters():
            self.init_parameter(name, weight)

    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Draw the initial values of one parameter from torch's generator."""
        raise NotImplementedError
