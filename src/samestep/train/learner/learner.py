"""A learner is one trainable module with its optimizer and schedule: it turns micro-batches into one exact update.

    metrics = learner.update(feed[step], loss)

A loss is named sums: `loss(module, batch)` returns, per term, each row's sum. The learner adds the live rows up,
divides by the term's global weight (counted before the forward pass), and scales by the number of data-parallel ranks,
so that the mean over them that DDP and FSDP take is the exact gradient of the global batch, however it was split.
Whether the gradient is finite is decided on the device from its global norm: all ranks skip together, nobody waits.

Only the terms that `mix` names are trained, each times its coefficient; all others are logged. A loss of one term needs
no mix.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from samestep.core.errors import RunFailed
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.parallel.wrap import Parallel, distribute_like, local, total_norm, warm_up
from samestep.train.hooks.evidence import Recorder
from samestep.train.learner.coupled import Couple, Coupled, Embed
from samestep.train.learner.dropout import share_key
from samestep.train.learner.gradient_weighting import Loss, Mix, trained_terms, update_metrics, weigh
from samestep.train.learner.nonfinite import FiniteGuard
from samestep.train.learner.optimizer import LossScale, OptimSettings, adamw
from samestep.train.learner.rank_dependence import finding_unkeyed
from samestep.train.logging.metrics import Metrics
from samestep.world.world import World

logger = logging.getLogger(__name__)
COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types of mixed precision; `none` is none of them."""
DETOUR = 3.0
"""A scale of the backward pass that every number type rounds differently, and as a run at 3 ranks does."""
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


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
        recorder: Recorder | None = None,
        step: Callable[[], int] | None = None,
        seed: int = 0,
        detour: float = 1.0,
    ) -> None:
        """`rate` gives the learning rate of a step of the loop, however many updates are made in it; `step` says which
        step it is (without one: as many as there were updates). `detour` scales gradients during the backward pass and
        is taken out again: only their rounding changes."""
        self.name, self.updates = name, 0
        self.is_under_way = False
        """Whether it has made an update in this launch."""
        self._loop_step = step
        self._parallel, self.world, self._rate, self._settings = parallel, world, rate, settings
        # Listed once: walking over the modules would take as long as the norm of the gradients.
        self._trained = [(name, p) for name, p in parallel.inner.named_parameters() if p.requires_grad]
        self._optimizer = adamw(parallel.inner, settings)
        self._autocast_type = COMPUTE.get(mixed_precision)
        self._scale = LossScale(world.device) if mixed_precision == "fp16" else None
        self._guard = FiniteGuard(world.device, name, max_bad_steps)
        self.recorder = recorder
        self.unkeyed: list[str] = []
        """What makes this learner's updates depend on the number of ranks, as its first micro-batch showed."""
        self._looked = False
        self._mask_key = share_key(parallel.inner, name, seed)
        self._settled = not parallel.needs_warm_up
        self._detour = detour
        self._ranks = torch.full((), world.dp_size * detour, device=world.device)

    def update(self, micros: MicroBatches, loss: Loss, mix: Mix | None = None) -> Metrics:
        """One optimizer step on the global batch; `mix` gives the coefficient of each term that is trained."""
        with self._keyed_masks():
            self._begin_update(lambda: self._backward(micros.first(), loss, mix))
            sums, rows = self._backward(micros, loss, mix)
        trained = trained_terms(self.name, sums, mix)
        if not any(micros.weight(term) for term in trained):  # of the whole batch, so all ranks say the same
            return self._skip()
        if self.recorder:
            self.recorder.rows(self.name, micros, rows)
        return self._apply(micros, sums, trained)

    def update_coupled(self, micros: MicroBatches, embed: Embed, couple: Couple, mix: Mix | None = None) -> Metrics:
        """One optimizer step on a loss that couples all rows of the global batch with each other (see coupled.py)."""
        coupled = Coupled(self._parallel, self.world, self._autocast, self._call, self._check_called)

        def weighed(rows: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return weigh(self.name, rows, len(micros.ids), micros, trained_terms(self.name, rows, mix))

        def backward() -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
            return coupled.backward(micros, embed, couple, weighed, self._boost())

        with self._keyed_masks():
            self._begin_update(backward)
            sums, rows = backward()
        trained = trained_terms(self.name, sums, mix)
        if not any(micros.weight(term) for term in trained):
            return self._skip()
        if self.recorder:
            self.recorder.coupled_rows(self.name, micros, rows)
        return self._apply(micros, sums, trained, same=True)

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """The module itself for generation and validation: evaluation mode, no gradients, same arithmetic.

        A sharded module gathers its parts as it is called, so every rank must call it equally often.
        """
        inner = self._parallel.inner
        modes = [(part, part.training) for part in inner.modules()]  # a frozen part may be in evaluation mode for good
        inner.eval()
        try:
            with torch.no_grad(), self._autocast():
                yield inner
        finally:
            for part, was_training in modes:
                part.training = was_training
            self._parallel.reshard()

    @contextmanager
    def held_constant(self) -> Iterator[nn.Module]:
        """The module itself for another learner's loss: differentiable in its inputs, its own weights held constant.

        What is computed inside leaves no gradient in them, also when the backward pass comes later. Not for a network
        that computes parts of itself again in the backward pass (activation checkpointing).
        """
        with self._parallel.held_constant(), self._autocast():
            yield self._parallel.inner

    def _begin_update(self, backward: Callable[[], object]) -> None:
        if self.recorder:
            self.recorder.begin(self.name, self._parallel.inner)
        self._drop_gradients()  # another learner's loss may have left some
        self.is_under_way = True
        if not self._settled:
            warm_up(self._parallel.inner, backward)
            self._settled = True

    def _backward(
        self, micros: MicroBatches, loss: Loss, mix: Mix | None
    ) -> tuple[dict[str, Tensor], list[Mapping[str, Tensor]]]:
        """Gradients of all micro-batches, reduced over ranks once; this rank's sums per term, and its rows."""
        all_sums, all_rows = [], []
        for number, batch in enumerate(micros.batches):
            self.world.activity.made_progress()
            with self._parallel.syncing(last=number == len(micros.batches) - 1):
                self._parallel.called = False
                with self._autocast():
                    rows = self._call(loss, self._parallel.module, batch)
                    trained = trained_terms(self.name, rows, mix)
                    total, sums = weigh(self.name, rows, len(batch["live"]), micros, trained, micros.is_filler(number))
                self._check_called()
                total.backward(self._boost().to(total.dtype))
            all_sums.append(sums)
            all_rows.append(rows)
        micros.terms.update(all_sums[0])
        return {term: reduce(add, [s[term] for s in all_sums]) for term in all_sums[0]}, all_rows

    def _call(self, loss: Loss, module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """A loss of one micro-batch, by whose samples dropout is keyed. The first of a launch is looked at closely."""
        if self._mask_key:
            self._mask_key.take(batch)
        if self._looked:
            return loss(module, batch)
        self._looked = True
        with finding_unkeyed(self._parallel.inner, self.world.device, loss) as self.unkeyed:
            rows = loss(module, batch)
        for sentence in self.unkeyed if self.world.is_main else ():
            logger.warning("learner %r: %s", self.name, sentence)
        return rows

    def _step_now(self) -> int:
        return self.updates if self._loop_step is None else self._loop_step()

    def _keyed_masks(self) -> AbstractContextManager[None]:
        """Around an update: dropout masks are keyed by its step, and by its number within the step."""
        return self._mask_key.updating(self._step_now()) if self._mask_key else nullcontext()

    def _boost(self) -> Tensor:
        """What gradients are multiplied by from the start of the backward pass. The mean over ranks is to be a sum;
        fp16 does that afterwards, so that what overflows does not depend on the number of ranks."""
        return self._scale.scale * self._detour if self._scale else self._ranks

    def _check_called(self) -> None:
        if not self._parallel.called:
            raise RunFailed(
                f"the loss of learner {self.name!r} did not call the module it was given but went around it "
                "(for example through .module), which would skip gradient synchronisation"
            )

    def _apply(self, micros: MicroBatches, sums: Mapping[str, Tensor], trained: Mix, same: bool = False) -> Metrics:
        """Clip, check, step, and say what happened, all without waiting for the device."""
        if self._detour != 1.0:
            torch._foreach_div_([local(gradient) for gradient in self._gradients()], self._detour)
        if self.recorder:
            self.recorder.gradients(self.name, self._parallel.inner)
        gradients = self._gradients()
        norm = total_norm(gradients)
        if self._scale:
            norm = norm * (self.world.dp_size / self._scale.scale)
        bad = (~(norm < torch.inf)).float()  # also where it is NaN
        rate = self._rate(self._step_now())
        self._step(gradients, norm, bad, rate)
        blamed = bad
        if self._scale:
            blamed = bad * (self._scale.scale <= 1)  # an overflow is nobody's fault while the scale can still fall
            self._scale.update(bad)
        self.updates += 1
        if self.recorder:
            self.recorder.parameters(self.name, self._parallel.inner, micros)
        self._guard.watch(blamed, micros)
        return update_metrics(self.name, micros, sums, trained, same, norm=norm, bad=bad, rate=rate)

    def _gradients(self) -> list[Tensor]:
        gradients = [p.grad for _, p in self._trained if p.grad is not None]
        if self._parallel.needs_all_gradients and len(gradients) < len(self._trained):
            lacking = [name for name, p in self._trained if p.grad is None]
            raise RunFailed(
                f"{len(lacking)} parameters of learner {self.name!r} got no gradient in this step, the first of them "
                f"{lacking[0]!r}; use them in every loss (a term of a mix may have the coefficient 0), or name them in "
                "the recipe's `unused`"
            )
        return gradients

    def _step(self, gradients: list[Tensor], norm: Tensor, bad: Tensor, rate: float) -> None:
        """The fused optimizer divides gradients by `grad_scale`, and does nothing where `found_inf` is one."""
        clip = self._settings.clip
        # As torch's clip_grad_norm_ has it.
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        if self._scale:
            divisor = divisor * (self._scale.scale / self.world.dp_size)
        if norm.dtype == torch.float64:  # the fused divisor is float32, too coarse for a proof in float64
            torch._foreach_div_([local(gradient) for gradient in gradients], divisor)
        else:
            self._optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._drop_gradients()

    def _skip(self) -> Metrics:
        """A step without weight moves nothing, not even by momentum or weight decay."""
        self._drop_gradients()
        self.updates += 1
        return {}

    def _drop_gradients(self) -> None:
        for _, parameter in self._trained:
            parameter.grad = None

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._autocast_type is None:
            return nullcontext()
        return torch.autocast(self.world.device.type, self._autocast_type)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters."""
        return self._parallel.inner.parameters()

    def replicated_parameters(self) -> dict[str, nn.Parameter]:
        """Those that every rank holds whole, by name."""
        return {name: p for name, p in self._parallel.inner.named_parameters() if local(p) is p}

    @property
    def waited(self) -> float | None:
        """Seconds that this rank waited for the others' gradients so far; None where that is not measured."""
        return self._parallel.seconds_waited

    def check_finite(self) -> None:
        """Read what is still on its way from the device; raises when too many steps in a row were bad."""
        self._guard.check()

    def weights(self, whole: bool = False) -> dict[str, Any]:
        """The module's state by its own names; `whole` gathers a sharded one to the CPU of rank 0."""
        options = StateDictOptions(full_state_dict=whole, cpu_offload=whole)
        return get_model_state_dict(self._parallel.inner, options=options)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take whole weights, given alike on every rank."""
        set_model_state_dict(self._parallel.inner, dict(weights), options=StateDictOptions(full_state_dict=True))

    def load_plain_optimizer(self, state: Mapping[str, Any]) -> None:
        """Take the moments of a torch optimizer over the same parameters in the module's order, in whatever groups."""
        theirs = [number for group in state["param_groups"] for number in group["params"]]
        ours = [p for p in self._parallel.inner.parameters() if p.requires_grad]
        assert len(theirs) == len(ours), f"it is for {len(theirs)} parameters, but the model has {len(ours)}"
        for number, parameter in zip(sorted(theirs), ours):
            moments = state["state"].get(number, {})
            for name in ("exp_avg", "exp_avg_sq"):
                assert moments[name].shape == parameter.shape, f"moment {number} is {tuple(moments[name].shape)}"
            own = self._optimizer.state[parameter]
            own["step"] = torch.as_tensor(float(moments["step"]), device=parameter.device)
            own |= {name: distribute_like(moments[name], parameter) for name in ("exp_avg", "exp_avg_sq")}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to be the same run."""
        return {
            "model": self.weights(),
            "optimizer": self._optimizer_state(),
            "scale": self._scale.state_dict() if self._scale else {},
            "guard": self._guard.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the learner that was saved."""
        set_model_state_dict(self._parallel.inner, state["model"])
        current = get_optimizer_state_dict(self._parallel.inner, self._optimizer, options=_FLAT)
        set_optimizer_state_dict(
            self._parallel.inner, self._optimizer, {**current, **state["optimizer"]}, options=_FLAT
        )
        if self._scale:
            self._scale.load_state_dict(state["scale"])
        self._guard.load_state_dict(state["guard"])
        self.updates = state["updates"]

    def _optimizer_state(self) -> dict[str, Any]:
        """Moments and step counts; the groups' settings come from the configuration, not from a checkpoint."""
        state = get_optimizer_state_dict(self._parallel.inner, self._optimizer, options=_FLAT)
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}
