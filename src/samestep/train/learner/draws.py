"""Sampling tokens inside training: the same tokens at every world size, recorded for `samestep verify`."""

from dataclasses import dataclass

from torch import Tensor

from samestep.data import noise
from samestep.train.learner.evidence import EvidenceRecorder


@dataclass(frozen=True)
class Draws:
    """Keyed draws for one purpose (a rollout, a resampled negative)."""

    purpose: str
    seed: int
    recorder: EvidenceRecorder | None = None

    def pick(self, logits: Tensor, *, step: int, ids: Tensor, position: int, temperature: float = 1.0) -> Tensor:
        """One token a row from softmax(logits / temperature); `logits` is [rows, tokens], `ids` is [rows, 2].

        Gumbel noise in float64 keyed by seed, purpose, step, sample and position: no rank, no state.
        """
        tokens, margins = self.choose(logits, step=step, ids=ids, position=position, temperature=temperature)
        self.record(step, ids, position, tokens, margins)
        return tokens

    def choose(
        self, logits: Tensor, *, step: int, ids: Tensor, position: int | Tensor, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The same tokens without recording them, and how far each was from the runner-up; for `record`."""
        scores = logits.double()
        if temperature > 0:
            epoch, index = ids[:, :1], ids[:, 1:]
            key = (self.seed, noise.purpose(self.purpose), step, epoch, index, position)
            scores = noise.add_gumbel(scores / temperature, *key)  # scaled before, so that margins are in its unit
        best = scores.topk(2, dim=-1)
        return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]

    def record(self, step: int, ids: Tensor, position: int, tokens: Tensor, margins: Tensor) -> None:
        """Record chosen tokens, if this run is recorded."""
        if self.recorder:
            self.recorder.draw(self.purpose, step, ids, position, tokens, margins)
