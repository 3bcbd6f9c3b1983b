"""A learner is one trainable module with its optimizer and schedule: it turns micro-batches into one exact update.

    metrics = learner.update(feed[step], loss)

A loss is named sums: `loss(module, batch)` returns, per term, each row's sum. The learner adds the live rows up,
divides by the term's global weight (counted before the forward pass), and scales by the number of data-parallel ranks,
so that the mean over them that DDP and FSDP take is the exact gradient of the global batch, however it was split.
Whether the gradient is finite is decided on the device from its global norm: all ranks skip together, without waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from samestep.data.feed import MicroBatches, for_update
from samestep.data.loading import Batch
from samestep.parallel.wrap import Parallel, local, total_norm, warm_up
from samestep.train.learner.coupled import Couple, Coupled, Embed
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.learner.gradient_weighting import Loss, Mix, gradients_of, trained_terms, update_metrics, weigh
from samestep.train.learner.optimizer import LearnerOptimizer, OptimSettings
from samestep.train.learner.passes import Gradients, Passes
from samestep.train.learner.preparation import Choices
from samestep.train.learner.size_trial import SizeTrial
from samestep.train.learner.skipped_steps import SkippedSteps
from samestep.train.logging.metrics import Metric, Metrics
from samestep.world.world import World

ROUNDING_SCALE = 3.0
"""A scale of the backward pass under which every number type rounds differently, as it does at 3 ranks."""


class FirstStepNotes:
    """Which parameters got no gradient in any update of the first step, and what these updates returned."""

    def __init__(self) -> None:
        self._step: int | None = None
        self.untrained: set[str] | None = None
        """Names of parameters; None before the first update."""
        self.metrics: list[Metric] = []

    def note_gradients(self, step: int, trained: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Called before the optimizer's step."""
        if self._step is None:
            self._step = step
        if self._step == step and self.untrained != set():
            lacking = {name for name, parameter in trained if parameter.grad is None}
            self.untrained = lacking if self.untrained is None else self.untrained & lacking

    def noted(self, step: int, metrics: Metrics) -> Metrics:
        """What an update returns."""
        if self._step == step:
            self.metrics += metrics.values()
        return metrics


class Learner(Passes):
    """One trainable module, its optimizer and its learning rate."""

    def __init__(
        self,
        parallel: Parallel,
        world: World,
        rate: Callable[[int], float],
        settings: OptimSettings,
        *,
        name: str = "model",
        mixed_precision: str = "none",
        max_bad_steps: int = 5,
        recorder: EvidenceRecorder | None = None,
        step: Callable[[], int] | None = None,
        seed: int = 0,
        rounding_scale: float = 1.0,
        choices: Choices | None = None,
    ) -> None:
        """`rate` gives the learning rate of a step of the loop, however many updates are made in it; `step` says which
        step it is (without one: as many as there were updates). `rounding_scale` multiplies the gradients during the
        backward pass and is divided out again: only their rounding changes."""
        super().__init__(name, parallel, world, mixed_precision, choices or Choices(), step, seed, rounding_scale)
        self.has_updated = False
        """Whether it has made an update in this launch."""
        self.first_step = FirstStepNotes()
        self.kept_weights: list[tuple[str, Any]] = []
        """What keeps other weights of it, which the task's state must have too: what it is, and itself."""
        self._rate = rate
        self._optimizer = LearnerOptimizer(parallel.inner, settings)
        self.skipped_steps = SkippedSteps(world, name, max_bad_steps)
        self.recorder = recorder
        self._is_warmed_up = not parallel.needs_warm_up

    def update(self, micro_batches: MicroBatches, loss: Loss, mix: Mix | None = None) -> Metrics:
        """One optimizer step on the global batch; `mix` gives the coefficient of each term that is trained.

        `loss(module, batch)` gives, by name, one value for each row. Every rank calls it alike.
        """
        micro_batches = for_update(micro_batches)
        if self.size_trial is not None:
            return self._only_try(self.size_trial, micro_batches, lambda rows: self._backward(rows, loss, mix), mix)
        with self._rows_known(micro_batches):
            self._begin_update(micro_batches, loss, lambda: self._backward(micro_batches.first(), loss, mix), mix)
            sums, rows = self._backward(micro_batches, loss, mix)
        return self._finish_update(micro_batches, sums, rows, mix)

    def update_coupled(
        self, micro_batches: MicroBatches, embed: Embed, couple: Couple, mix: Mix | None = None
    ) -> Metrics:
        """One optimizer step on a loss that couples all rows of the global batch with each other."""
        micro_batches = for_update(micro_batches)
        weights = {} if self.has_updated else dict(self._trained)
        alone = self.size_trial is not None
        coupled = Coupled(self._parallel, self.world, self._autocast, self.loss_calls, weights, alone)

        def weighed(rows: Mapping[str, Tensor], count: int) -> tuple[Tensor, dict[str, Tensor]]:
            return weigh(self.name, rows, count, micro_batches, trained_terms(self.name, rows, mix))

        def backward(rows: MicroBatches) -> Gradients:
            with self._preparation.attention():
                return coupled.backward(rows, embed, couple, weighed, self._gradient_scale())

        if self.size_trial is not None:
            return self._only_try(self.size_trial, micro_batches, backward, mix)
        with self._rows_known(micro_batches):
            self._begin_update(micro_batches, embed, partial(backward, micro_batches))
            sums, rows = backward(micro_batches)
        return self._finish_update(micro_batches, sums, rows, mix)

    def _finish_update(
        self, micro_batches: MicroBatches, sums: Mapping[str, Tensor], rows: list[Mapping[str, Tensor]], mix: Mix | None
    ) -> Metrics:
        trained = trained_terms(self.name, sums, mix)
        if not any(micro_batches.weight(term) for term in trained):  # of the global batch, so all ranks decide alike
            return self._skip(micro_batches, trained)
        if self.recorder:
            self.recorder.rows(self.name, micro_batches, rows)
        return self._apply(micro_batches, sums, rows, trained)

    def measure(self, function: Loss, batch: Batch) -> Mapping[str, Tensor]:
        """Values per row of a function of the network and a batch; for validation, inside of `inference`."""
        return self.loss_calls.padded(function, batch, in_update=False)

    def _begin_update(
        self, micro_batches: MicroBatches, function: Loss, backward: Callable[[], object], mix: Mix | None = None
    ) -> None:
        self.world.activity.began_update(self.name)
        if self.recorder:
            self.recorder.begin(self.name, self._parallel.inner)
        self.has_updated = True
        batches = micro_batches.batches
        self.loss_calls.expect(batches)
        self._preparation.prepare(function, partial(self._attempt, function, batches[0], mix), passes=len(batches))
        if not self._is_warmed_up:
            warm_up(self._parallel.inner, backward)
            self._is_warmed_up = True
        self._drop_gradients()  # another learner's loss may have left some
        self._batch_norms.restart()

    def _only_try(
        self,
        trial: SizeTrial,
        micro_batches: MicroBatches,
        backward: Callable[[MicroBatches], Gradients],
        mix: Mix | None,
    ) -> Metrics:
        """In place of an update; the metrics have the names of its own."""
        sums = self._try_sizes(trial, micro_batches, backward)
        trained = trained_terms(self.name, sums, mix)
        if not any(micro_batches.weight(term) for term in trained):
            return {}
        zero, rate = torch.zeros((), device=self.world.device), self._rate(self._step_now())
        return update_metrics(self.name, micro_batches, sums, trained, norm=zero, bad=zero, rate=rate)

    @property
    def memory_to_come(self) -> int:
        """Bytes of the optimizer's state that are not allocated yet."""
        return self._optimizer.memory_to_come

    def _apply(
        self, micro_batches: MicroBatches, sums: Mapping[str, Tensor], rows: list[Mapping[str, Tensor]], trained: Mix
    ) -> Metrics:
        """Clip, check, step, and return what is logged; with AdamW all without waiting for the device."""
        if self._rounding_scale != 1.0:
            torch._foreach_div_([local(p.grad) for _, p in self._trained if p.grad is not None], self._rounding_scale)
        if self.recorder:
            self.recorder.gradients(self.name, self._parallel.inner)
        gradients, step = gradients_of(self.name, self._trained, self._parallel.needs_all_gradients), self._step_now()
        self.first_step.note_gradients(step, self._trained)
        if self._optimizer.drop_untrained(step):
            gradients = [p.grad for _, p in self._trained if p.grad is not None]
        norm = total_norm(gradients) if gradients else torch.zeros((), device=self.world.device)
        if self._scale:
            norm = norm * (self.world.dp_size / self._scale.scale)
        bad = (~(norm < torch.inf)).float()  # also where it is NaN
        rate = self._rate(step)
        loss_scale = self._scale.scale / self.world.dp_size if self._scale else None
        if self._optimizer.compiles:
            self._preparation.before_compiling("the optimizer")
        with self.world.activity.doing("compile") if self._optimizer.compiles else nullcontext():
            self._optimizer.step(gradients, norm, rate=rate, bad=bad, loss_scale=loss_scale)
        self._batch_norms.apply(bad)
        self._drop_gradients()
        counted = bad
        if self._scale:
            counted = bad * (self._scale.scale <= 1)  # an overflow is no error while the scale can still fall
            self._scale.update(bad)
        self.updates += 1
        if self.recorder:
            self.recorder.parameters(self.name, self._parallel.inner, micro_batches)
        self.skipped_steps.add(step, bad, counted, micro_batches, [{t: terms[t] for t in trained} for terms in rows])
        metrics = update_metrics(self.name, micro_batches, sums, trained, norm=norm, bad=bad, rate=rate)
        return self.first_step.noted(step, metrics)

    def _skip(self, micro_batches: MicroBatches, trained: Mix) -> Metrics:
        """A step without weight moves nothing, not even by momentum or weight decay."""
        self.skipped_steps.add_uncounted(self._step_now(), len(micro_batches.ids), trained)
        self._drop_gradients()
        self.updates += 1
        return {}

    def check_finite(self) -> None:
        """Read whether the last step was bad; raises when too many in a row were. Every rank calls it alike."""
        self.skipped_steps.check()

    def load_torch_optimizer(self, state: Mapping[str, Any]) -> None:
        """Load the moments of a torch optimizer over the same parameters in the module's order, in whatever groups."""
        self._optimizer.load_torch_state(state)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to be the same run."""
        return {
            "model": self.weights(),
            "optimizer": self._optimizer.state_dict(),
            "scale": self._scale.state_dict() if self._scale else {},
            "skipped": self.skipped_steps.state_dict(),
            "updates": self.updates,
        }

    def prepare_load(self, saved: dict[str, Any]) -> None:
        """Make what `state_dict` must have before it can be loaded; `saved` is the saved state without its tensors."""
        self._optimizer.prepare_load(saved.get("optimizer", {}))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as the learner that was saved."""
        options = StateDictOptions(strict=not self.has_frozen_base)
        set_model_state_dict(self._parallel.inner, state["model"], options=options)
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scale:
            self._scale.load_state_dict(state["scale"])
        self.skipped_steps.load_state_dict(state["skipped"])
        self.updates = state["updates"]
