"""A learner is one trainable module with its optimizer and schedule: it turns micro-batches into one exact update.

    metrics = learner.update(feed[step], loss)

A loss is named sums: `loss(module, batch)` returns, per term, each row's sum. The learner adds the live rows up,
divides by the term's global weight (counted before the forward pass), and scales by the number of data-parallel ranks,
so that the mean over them that DDP and FSDP take is the exact gradient of the global batch, however it was split.
Whether the gradient is finite is decided on the device from its global norm: all ranks skip together, without waiting.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from samestep.core.errors import UserError
from samestep.data.feed import MicroBatches, for_update
from samestep.data.loading import Batch
from samestep.parallel.compiling import repeat_rows, zero_gradients
from samestep.parallel.precision import COMPUTE_DTYPES, autocast
from samestep.parallel.wrap import Parallel, local, refuse_uncalled, total_norm, uncompiled, warm_up
from samestep.train.learner.coupled import Couple, Coupled, Embed
from samestep.train.learner.dropout import share_key
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.learner.gradient_weighting import Loss, Mix, gradients_of, trained_terms, update_metrics, weigh
from samestep.train.learner.lora import frozen_names, has_adapters, has_frozen_base, without_adapters
from samestep.train.learner.merged import merged_weights
from samestep.train.learner.optimizer import LearnerOptimizer, LossScale, OptimSettings
from samestep.train.learner.preparation import Choices, Preparation
from samestep.train.learner.rank_dependence import check_first_call
from samestep.train.learner.skipped_steps import SkippedSteps
from samestep.train.logging.metrics import Metric, Metrics
from samestep.world.world import World


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


logger = logging.getLogger(__name__)
ROUNDING_SCALE = 3.0
"""A scale of the backward pass under which every number type rounds differently, as it does at 3 ranks."""


class Learner:
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
        self.name, self.updates = name, 0
        self.has_updated = False
        """Whether it has made an update in this launch."""
        self.first_step = FirstStepNotes()
        self.kept_weights: list[tuple[str, Any]] = []
        """What keeps other weights of it, which the task's state must have too: what it is, and itself."""
        self._loop_step = step
        self._parallel, self.world, self._rate = parallel, world, rate
        self.has_adapters = has_adapters(parallel.inner)
        self.has_frozen_base = has_frozen_base(parallel.inner)
        """Whether what does not train is in no checkpoint: the base of adapters, or of a network that says so."""
        self._unsaved = frozen_names(parallel.inner) if self.has_frozen_base else set()
        # Listed once: walking over the modules would take as long as the norm of the gradients.
        self._trained = [(name, p) for name, p in parallel.inner.named_parameters() if p.requires_grad]
        self._optimizer = LearnerOptimizer(parallel.inner, settings)
        self._compute = COMPUTE_DTYPES.get(mixed_precision)
        self._scale = LossScale(world.device) if mixed_precision == "fp16" else None
        self.skipped_steps = SkippedSteps(world, name, max_bad_steps)
        self.recorder = recorder
        self.rank_dependence: list[str] = []
        """What makes this learner's updates depend on the number of ranks, found in its first micro-batch."""
        self._preparation = Preparation(name, parallel, world, choices or Choices(), self._autocast)
        self._is_checked = False
        self._most_rows = 0
        self._mask_key = share_key(parallel.inner, name, seed)
        self._is_warmed_up = not parallel.needs_warm_up
        self._rounding_scale = rounding_scale
        self._ranks = torch.full((), world.dp_size * rounding_scale, device=world.device)

    def update(self, micro_batches: MicroBatches, loss: Loss, mix: Mix | None = None) -> Metrics:
        """One optimizer step on the global batch; `mix` gives the coefficient of each term that is trained."""
        micro_batches = for_update(micro_batches)
        with self._keyed_masks():
            self._begin_update(micro_batches, loss, lambda: self._backward(micro_batches.first(), loss, mix), mix)
            sums, rows = self._backward(micro_batches, loss, mix)
        return self._finish_update(micro_batches, sums, rows, mix)

    def update_coupled(
        self, micro_batches: MicroBatches, embed: Embed, couple: Couple, mix: Mix | None = None
    ) -> Metrics:
        """One optimizer step on a loss that couples all rows of the global batch with each other (see coupled.py)."""
        micro_batches = for_update(micro_batches)
        coupled = Coupled(self._parallel, self.world, self._autocast, self._call, self._check_called)

        def weighed(rows: Mapping[str, Tensor], count: int) -> tuple[Tensor, dict[str, Tensor]]:
            return weigh(self.name, rows, count, micro_batches, trained_terms(self.name, rows, mix))

        def backward() -> tuple[dict[str, Tensor], list[Mapping[str, Tensor]]]:
            with self._preparation.attention():
                return coupled.backward(micro_batches, embed, couple, weighed, self._gradient_scale())

        with self._keyed_masks():
            self._begin_update(micro_batches, embed, backward)
            sums, rows = backward()
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

    @property
    def module(self) -> nn.Module:
        """The module with the weights that are trained, to read and to fill them; `inference` is for its use."""
        return self._parallel.inner

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """The module itself for generation and validation: evaluation mode, no gradients, same arithmetic. In mixed
        precision its weights are casts meanwhile.

        A sharded module gathers its parts as it is called, so every rank must call it equally often.
        """
        inner = self._parallel.inner
        modes = [(part, part.training) for part in inner.modules()]  # a frozen part may be in evaluation mode for good
        inner.eval()
        try:
            with torch.no_grad(), self._computing():
                yield inner
        finally:
            for part, was_training in modes:
                part.training = was_training
            self._parallel.reshard()

    def uncompiled(self) -> AbstractContextManager[None]:
        """Inside, the network is called as it is: nothing is compiled or recorded for what is only tried."""
        return uncompiled(self._parallel)

    @contextmanager
    def adapters_off(self) -> Iterator[nn.Module]:
        """The module as `inference` gives it, without its adapters: the network as it was before anything was trained.

        It may be used inside this learner's own loss, before or after the module that the loss is given.
        """
        if not self.has_adapters:
            raise UserError(
                f"learner {self.name!r} has no adapters to switch off; make it with lora=Lora(...), or use "
                "bench.frozen(learner) for a copy of its first weights"
            )
        with self.inference() as module, without_adapters(module):
            yield module

    @contextmanager
    def held_constant(self) -> Iterator[nn.Module]:
        """The module itself for another learner's loss: differentiable in its inputs, its own weights held constant.

        What is computed inside leaves no gradient in them, also when the backward pass comes later. Not for a network
        that itself computes parts again in the backward pass; `activation_checkpointing` takes care of that.
        """
        with self._parallel.held_constant(), self._computing():
            yield self._parallel.inner

    def measure(self, function: Loss, batch: Batch) -> Mapping[str, Tensor]:
        """Values per row of a function of the network and a batch; for validation, inside of `inference`."""
        return self._call_padded(function, batch, in_update=False)

    def _begin_update(
        self, micro_batches: MicroBatches, function: Loss, backward: Callable[[], object], mix: Mix | None = None
    ) -> None:
        self.world.activity.began_update(self.name)
        if self.recorder:
            self.recorder.begin(self.name, self._parallel.inner)
        self.has_updated = True
        batches = micro_batches.batches
        self._most_rows = max(self._most_rows, *(len(batch["live"]) for batch in batches))
        self._preparation.prepare(function, partial(self._attempt, function, batches[0], mix), passes=len(batches))
        if not self._is_warmed_up:
            warm_up(self._parallel.inner, backward)
            self._is_warmed_up = True
        self._drop_gradients()  # another learner's loss may have left some

    def _backward(
        self, micro_batches: MicroBatches, loss: Loss, mix: Mix | None
    ) -> tuple[dict[str, Tensor], list[Mapping[str, Tensor]]]:
        """Gradients of all micro-batches, reduced over ranks once; this rank's sums per term, and its rows."""
        all_sums, all_rows = [], []
        for number, batch in enumerate(micro_batches.batches):
            self.world.activity.made_progress()
            last = number == len(micro_batches.batches) - 1
            with self._parallel.syncing(last), self._preparation.attention():
                self._parallel.called = False
                with self._autocast():
                    rows = self._call(loss, batch)
                    trained = trained_terms(self.name, rows, mix)
                    total, sums = weigh(
                        self.name, rows, len(batch["live"]), micro_batches, trained, micro_batches.is_filler(number)
                    )
                self._check_called()
                total.backward(self._gradient_scale().to(total.dtype))
            all_sums.append(sums)
            all_rows.append(rows)
        micro_batches.terms.update(all_sums[0])
        return {term: reduce(add, [s[term] for s in all_sums]) for term in all_sums[0]}, all_rows

    def _call(self, loss: Loss, batch: Batch) -> Mapping[str, Tensor]:
        """The loss of one micro-batch, whose samples key the dropout masks. The first of a launch is checked for what
        depends on the number of ranks."""
        if self._is_checked:
            return self._call_padded(loss, batch)
        self._is_checked = True
        rows, self.rank_dependence = check_first_call(
            self.name, self._parallel, self.world, self._call_padded, loss, batch, rounded=self._compute is not None
        )
        return rows

    def _call_padded(self, function: Loss, batch: Batch, in_update: bool = True) -> Mapping[str, Tensor]:
        """Call a function of the network; where it is compiled, with as many rows as before."""
        count = len(batch["live"])
        if self._parallel.compiler:
            batch = repeat_rows(dict(batch), self._most_rows)
        if self._mask_key and in_update:
            self._mask_key.set_batch(batch)
        rows = self._parallel.call(function, batch)
        if self._preparation.cuda_graphs:  # the next call overwrites what this one returned
            rows = {term: values.clone() for term, values in rows.items()}
        return {term: values[:count] for term, values in rows.items()} if count < len(batch["live"]) else rows

    def _attempt(self, function: Loss, batch: Batch, mix: Mix | None) -> None:
        """A pass as in an update, of one micro-batch and without the weights of its terms."""
        synchronized = not self._parallel.replicated
        self._drop_gradients()
        with self._parallel.syncing(last=synchronized), self._preparation.attention(), self._autocast():
            self._parallel.called = False
            rows = self._call(function, batch)
            self._check_called()
            trained = [values for term, values in rows.items() if mix is None or term in mix]
            sums = [values.float().sum() for values in trained if values.requires_grad]
            if sums:
                reduce(add, sums).backward()

    def _step_now(self) -> int:
        return self.updates if self._loop_step is None else self._loop_step()

    def _keyed_masks(self) -> AbstractContextManager[None]:
        """Around an update: dropout masks are keyed by its step, and by its number within the step."""
        return self._mask_key.updating(self._step_now()) if self._mask_key else nullcontext()

    def _gradient_scale(self) -> Tensor:
        """The factor of gradients from the start of the backward pass. It makes the mean over ranks a sum; fp16 does
        that afterwards, so that what overflows does not depend on the number of ranks."""
        return self._scale.scale * self._rounding_scale if self._scale else self._ranks

    def _check_called(self) -> None:
        if not self._parallel.called:
            refuse_uncalled(self.name)

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
        with self.world.activity.doing("compile") if self._optimizer.compiles else nullcontext():
            self._optimizer.step(gradients, norm, rate=rate, bad=bad, loss_scale=loss_scale)
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

    def _drop_gradients(self) -> None:
        if self._preparation.cuda_graphs:
            return zero_gradients([parameter for _, parameter in self._trained])
        for _, parameter in self._trained:
            parameter.grad = None

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Around a use of the module other than in an update, for the same arithmetic."""
        with self._preparation.attention(), self._autocast(), self._parallel.cast_weights():
            yield

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.world.device, self._compute)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters."""
        return self._parallel.inner.parameters()

    def replicated_parameters(self) -> dict[str, nn.Parameter]:
        """Those that every rank holds in full, by name."""
        return {name: p for name, p in self._parallel.inner.named_parameters() if local(p) is p}

    def saved_parameters(self) -> dict[str, nn.Parameter]:
        """Those that a checkpoint holds, by name: all, or of a network with a frozen base those that train."""
        return {name: p for name, p in self._parallel.inner.named_parameters() if name not in self._unsaved}

    @property
    def waited(self) -> float | None:
        """Seconds that this rank waited for the others' gradients so far; None where that is not measured."""
        return self._parallel.seconds_waited

    def check_finite(self) -> None:
        """Read whether the last step was bad; raises when too many in a row were. Every rank calls it alike."""
        self.skipped_steps.check()

    def weights(self, full: bool = False) -> dict[str, Any]:
        """The module's state by its own names; `full` gathers a sharded one to the CPU of rank 0.

        Of a network with a frozen base: what trains, and buffers. Of one with adapters `merged_weights` gives all.
        """
        options = StateDictOptions(full_state_dict=full, cpu_offload=full, ignore_frozen_params=self.has_frozen_base)
        found = get_model_state_dict(self._parallel.inner, options=options)
        return {name: value for name, value in found.items() if name not in self._unsaved} if self._unsaved else found

    def merged_weights(self) -> dict[str, Tensor]:
        """The weights of the network without adapters, with what they have learned added to its base, on the CPU of
        rank 0; nothing on other ranks. Every rank must call it."""
        return merged_weights(self._parallel.inner, keep=self.world.is_main)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load full weights, the same on every rank."""
        options = StateDictOptions(full_state_dict=True, strict=not self.has_frozen_base)
        set_model_state_dict(self._parallel.inner, dict(weights), options=options)

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
