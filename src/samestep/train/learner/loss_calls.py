"""Calls a learner's losses on micro-batches, so that a row's values do not depend on the rows beside it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor

from samestep.data.loading import Batch
from samestep.parallel.compiling import repeat_rows
from samestep.parallel.wrap import Parallel, refuse_uncalled
from samestep.train.learner.batch_norm import BatchNorms
from samestep.train.learner.dropout import MaskKey
from samestep.train.learner.gradient_weighting import Loss
from samestep.train.learner.preparation import Preparation
from samestep.train.learner.rank_dependence import check_first_call
from samestep.world.world import World


class LossCalls:
    """The calls of one learner."""

    def __init__(
        self,
        name: str,
        parallel: Parallel,
        world: World,
        preparation: Preparation,
        mask_key: MaskKey | None,
        batch_norms: BatchNorms,
        rounded: bool,
    ) -> None:
        """`rounded`: in mixed precision, where rows may differ by rounding."""
        self._name, self._parallel, self._world, self._preparation = name, parallel, world, preparation
        self._mask_key, self._batch_norms, self._rounded = mask_key, batch_norms, rounded
        self._is_checked = False
        self._most_rows = 0
        self.rank_dependence: list[str] = []
        """What makes updates depend on the number of ranks, found in the first micro-batch."""

    def expect(self, batches: Sequence[Batch]) -> None:
        """Before an update on these: the largest decides how many rows a compiled network is called with."""
        self._most_rows = max(self._most_rows, *(len(batch["live"]) for batch in batches))

    def require_network(self) -> None:
        """After a loss, refuse one that has not called the network in the way that synchronises gradients."""
        if not self._parallel.called:
            refuse_uncalled(self._name)

    def __call__(self, loss: Loss, batch: Batch) -> Mapping[str, Tensor]:
        """The loss of one micro-batch, whose samples key the dropout masks. The first of a launch is checked for what
        depends on the number of ranks."""
        if self._is_checked:
            return self.padded(loss, batch)
        self._is_checked = True
        rows, self.rank_dependence = check_first_call(
            self._name, self._parallel, self._world, self.padded, loss, batch, rounded=self._rounded
        )
        return rows

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """Around calls that are only tried: the first one of the launch is still to come."""
        before, self._is_checked = self._is_checked, True
        try:
            yield
        finally:
            self._is_checked = before

    def padded(self, function: Loss, batch: Batch, in_update: bool = True) -> Mapping[str, Tensor]:
        """Call a function of the network; where it is compiled, with as many rows as before."""
        count = len(batch["live"])
        if self._parallel.compiler:
            batch = repeat_rows(dict(batch), self._most_rows)
        if self._mask_key and in_update:
            self._mask_key.set_batch(batch)
        knows_rows = self._batch_norms.calling(batch, count) if self._batch_norms and in_update else nullcontext()
        with knows_rows:
            rows = self._parallel.call(function, batch)
        if self._preparation.cuda_graphs:  # the next call overwrites what this one returned
            rows = {term: values.clone() for term, values in rows.items()}
        return {term: values[:count] for term, values in rows.items()} if count < len(batch["live"]) else rows
