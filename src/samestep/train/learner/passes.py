"""The passes of a learner over micro-batches, forward and backward: what leaves gradients, and changes nothing else."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor

from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.compiling import zero_gradients
from samestep.parallel.wrap import Parallel, local, warm_up
from samestep.train.learner.batch_norm import BatchNorms
from samestep.train.learner.dropout import share_key
from samestep.train.learner.gradient_weighting import Loss, Mix, trained_terms, weigh
from samestep.train.learner.learned_network import LearnedNetwork
from samestep.train.learner.loss_calls import LossCalls
from samestep.train.learner.optimizer import LossScale
from samestep.train.learner.preparation import Choices
from samestep.train.learner.size_trial import SizeTrial, repeated
from samestep.world.world import World

Gradients = tuple[dict[str, Tensor], list[Mapping[str, Tensor]]]
"""What passes over micro-batches return, beside gradients: this rank's sums per term, and its rows."""


class Passes(LearnedNetwork):
    """A network, and how the gradients of micro-batches come about."""

    def __init__(
        self,
        name: str,
        parallel: Parallel,
        world: World,
        mixed_precision: str,
        choices: Choices,
        step: Callable[[], int] | None,
        seed: int,
        rounding_scale: float,
    ) -> None:
        super().__init__(name, parallel, world, mixed_precision, choices)
        self.updates = 0
        self.size_trial: SizeTrial | None = None
        """While it is there, updates try sizes of micro-batches in place of what they do."""
        self._loop_step = step
        # Listed once: walking over the modules would take as long as the norm of the gradients.
        self._trained = [(name, p) for name, p in parallel.inner.named_parameters() if p.requires_grad]
        self._scale = LossScale(world.device) if mixed_precision == "fp16" else None
        self._mask_key = share_key(parallel.inner, name, seed)
        self._batch_norms = BatchNorms(parallel.inner, name, world, choices.fix)
        rounded = self._compute is not None
        self.loss_calls = LossCalls(
            name, parallel, world, self._preparation, self._mask_key, self._batch_norms, rounded
        )
        self._rounding_scale = rounding_scale
        self._ranks = torch.full((), world.dp_size * rounding_scale, device=world.device)

    def _backward(self, micro_batches: MicroBatches, loss: Loss, mix: Mix | None) -> Gradients:
        """Gradients of all micro-batches, reduced over ranks once; this rank's sums per term, and its rows."""
        all_sums, all_rows = [], []
        for number, batch in enumerate(micro_batches.batches):
            self.world.activity.made_progress()
            last = number == len(micro_batches.batches) - 1 and self.size_trial is None
            with self._parallel.syncing(last), self._preparation.attention():
                self._parallel.called = False
                with self._autocast():
                    rows = self.loss_calls(loss, batch)
                    trained = trained_terms(self.name, rows, mix)
                    total, sums = weigh(
                        self.name, rows, len(batch["live"]), micro_batches, trained, micro_batches.is_filler(number)
                    )
                self.loss_calls.require_network()
                total.backward(self._gradient_scale().to(total.dtype))
            all_sums.append(sums)
            all_rows.append(rows)
        micro_batches.terms.update(all_sums[0])
        return {term: reduce(add, [s[term] for s in all_sums]) for term in all_sums[0]}, all_rows

    def _attempt(self, function: Loss, batch: Batch, mix: Mix | None) -> None:
        """A pass as in an update, of one micro-batch and without the weights of its terms."""
        synchronized = not self._parallel.replicated
        self._drop_gradients()
        with self._parallel.syncing(last=synchronized), self._preparation.attention(), self._autocast():
            self._parallel.called = False
            rows = self.loss_calls(function, batch)
            self.loss_calls.require_network()
            trained = [values for term, values in rows.items() if mix is None or term in mix]
            sums = [values.float().sum() for values in trained if values.requires_grad]
            if sums:
                reduce(add, sums).backward()

    def _try_sizes(
        self, trial: SizeTrial, micro_batches: MicroBatches, backward: Callable[[MicroBatches], Gradients]
    ) -> Mapping[str, Tensor]:
        """Try how many rows of these micro-batches fit. Nothing of it stays but each term's sum over some rows."""
        found: list[Mapping[str, Tensor]] = []

        def passes(size: int) -> None:
            # A second one has the gradients of the first in memory.
            is_whole = size >= trial.share and len(micro_batches.batches) == 1
            rows = repeated(micro_batches, size, 1 if is_whole else 2, self.world)
            try:
                with self._rows_known(rows), self.loss_calls.unchecked():
                    found.append(backward(rows)[0])
            finally:
                self._drop_gradients()
                self._batch_norms.restart()

        gradients = sum(local(parameter).nbytes for _, parameter in self._trained)
        warm_up(self._parallel.inner, partial(trial.try_passes, passes, gradients))
        return found[0]

    @property
    def rows_together(self) -> int:
        """How many consecutive rows of the global batch must be in one micro-batch (see batch_norm.py)."""
        return self._batch_norms.rows or 1

    @property
    def needs_whole_share(self) -> bool:
        """Whether a rank's share of a global batch must be one micro-batch (see batch_norm.py)."""
        return bool(self._batch_norms) and self._batch_norms.rows is None

    def _step_now(self) -> int:
        return self.updates if self._loop_step is None else self._loop_step()

    @contextmanager
    def _rows_known(self, micro_batches: MicroBatches) -> Iterator[None]:
        """Around an update: dropout masks are keyed by its step, and by its number within the step; batch norms know
        how its rows are cut."""
        masks = self._mask_key.updating(self._step_now()) if self._mask_key else nullcontext()
        with masks, self._batch_norms.updating(micro_batches):
            yield

    def _gradient_scale(self) -> Tensor:
        """The factor of gradients from the start of the backward pass. It makes the mean over ranks a sum; fp16 does
        that afterwards, so that what overflows does not depend on the number of ranks."""
        return self._scale.scale * self._rounding_scale if self._scale else self._ranks

    def _drop_gradients(self) -> None:
        if self._preparation.cuda_graphs:
            return zero_gradients([parameter for _, parameter in self._trained])
        for _, parameter in self._trained:
            parameter.grad = None
