"""A stage before training: the decoder learns to repeat the last tokens of the context of an activation, the encoder to
rebuild the activation from them.

Training alone begins with texts that have nothing to do with the activation, and drawn tokens give gradients with much
noise. Here the texts are given: a step costs a fraction of one with drawn tokens, and training begins with explanations
that say something.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from samestep import Batch, Metrics, Tick
from samestep.recipes.lens.task import LensStage

STAGE = "warm_start"


class LensWarmStart(LensStage):
    """Decoder and encoder learn from the context itself."""

    def step(self, tick: Tick) -> Metrics:
        """One update."""
        given = self.feed[tick.step].changed(self._with_written)
        return self.learner.update(given, _loss, {"nats": 1.0, "mse": self.config.warm_start.mse_weight})

    def _with_written(self, batch: Batch) -> Batch:
        return {**batch, "written": last_tokens(batch["tokens"], batch["position"], self.config.t_text)}


def last_tokens(tokens: Tensor, position: Tensor, count: int) -> Tensor:
    """The last `count` tokens of texts [rows, columns] up to a position [rows], which is the last of them; the first
    token is repeated where there are fewer."""
    columns = position[:, None] + torch.arange(1 - count, 1, device=tokens.device)
    return tokens.gather(1, columns.clamp_min(0))


def _loss(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found = network(batch, "score")
    return {"nats": -found["log_probs"].mean(1), "mse": found["error"]}
