"""A learner is one trainable module with its optimizer and schedule: it turns micro-batches into one exact update.

    metrics = learner.update(feed[step], loss)

A loss is named sums: `loss(module, batch)` returns, per term, each row's sum. The learner adds the live rows up,
divides by the term's global weight (counted before the forward pass), and scales by the world size, so that the mean
over ranks that DDP and FSDP take is the exact gradient of the global batch, however it was split. Whether the
gradient is finite is decided on the device from its global norm: all ranks skip together, nobody waits.
"""

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
from samestep.data.feed import Micros
from samestep.data.loading import Batch
from samestep.parallel.wrap import Parallel, distribute_like, local, total_norm
from samestep.train.coupled import Couple, Coupled, Embed
from samestep.train.evidence import Recorder
from samestep.train.finite import FiniteGuard
from samestep.train.metrics import Figure, Metrics
from samestep.train.optim import LossScale, OptimSettings, adamw
from samestep.train.warm import warm_up
from samestep.world.world import World

Loss = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
Mix = Mapping[str, float]
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
        detour: float = 1.0,
    ) -> None:
        """`detour` scales gradients during the backward pass and is taken out again: only their rounding changes."""
        self.name, self.updates = name, 0
        self._parallel, self.world, self._rate, self._settings = parallel, world, rate, settings
        # Listed once: walking over the modules would take as long as the norm of the gradients.
        self._trained = [(name, p) for name, p in parallel.inner.named_parameters() if p.requires_grad]
        self._optimizer = adamw(parallel.inner, settings)
        self._autocast_type = COMPUTE.get(mixed_precision)
        self._scale = LossScale(world.device) if mixed_precision == "fp16" else None
        self._guard = FiniteGuard(world.device, name, max_bad_steps)
        self.recorder = recorder
        self._settled = not parallel.settles
        self._detour = detour
        self._ranks = torch.full((), world.size * detour, device=world.device)

    def update(self, micros: Micros, loss: Loss, mix: Mix | None = None) -> Metrics:
        """One optimizer step on the global batch; `mix` gives each term's coefficient (default 1)."""
        if self.recorder:
            self.recorder.begin(self.name, self._parallel.inner)
        self._settle_buckets(lambda: self._backward(micros.first(), loss, mix or {}))
        total, sums, rows = self._backward(micros, loss, mix or {})
        if self._weightless(micros, sums):
            return self._skip()
        if self.recorder:
            self.recorder.rows(self.name, micros, rows)
        return self._apply(micros, total, sums)

    def update_coupled(self, micros: Micros, embed: Embed, couple: Couple, mix: Mix | None = None) -> Metrics:
        """One optimizer step on a loss that couples all rows of the global batch with each other (see coupled.py)."""
        if self.recorder:
            self.recorder.begin(self.name, self._parallel.inner)
        coupled = Coupled(self._parallel, self.world, self._autocast, self._check_called)

        def backward() -> tuple[Tensor, dict[str, Tensor], Mapping[str, Tensor]]:
            return coupled.backward(
                micros, embed, couple, lambda rows: self._weigh(rows, len(micros.ids), micros, mix or {}), self._boost()
            )

        self._settle_buckets(backward)
        total, sums, rows = backward()
        if self._weightless(micros, sums):
            return self._skip()
        if self.recorder:
            self.recorder.coupled_rows(self.name, micros, rows)
        return self._apply(micros, total, sums, same=True)

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
            self._parallel.rest()

    def _settle_buckets(self, backward: Callable[[], object]) -> None:
        if not self._settled:
            warm_up(self._parallel.inner, backward)
            self._settled = True

    def _backward(
        self, micros: Micros, loss: Loss, mix: Mix
    ) -> tuple[Tensor, dict[str, Tensor], list[Mapping[str, Tensor]]]:
        """Gradients of all micro-batches, reduced over ranks once; this rank's total, its sums per term, its rows."""
        totals, all_sums, all_rows = [], [], []
        for number, batch in enumerate(micros.batches):
            self.world.watch.moved()
            with self._parallel.syncing(last=number == len(micros.batches) - 1):
                self._parallel.called = False
                with self._autocast():
                    rows = loss(self._parallel.module, batch)
                    total, sums = self._weigh(rows, len(batch["live"]), micros, mix, micros.is_filler(number))
                self._check_called()
                total.backward(self._boost().to(total.dtype))
            totals.append(total.detach())
            all_sums.append(sums)
            all_rows.append(rows)
        return reduce(add, totals), {term: reduce(add, [s[term] for s in all_sums]) for term in all_sums[0]}, all_rows

    def _weigh(
        self, rows: Mapping[str, Tensor], count: int, micros: Micros, mix: Mix, filler: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to differentiate, the sum over terms of coefficient * live rows / global weight; and the sums."""
        assert rows, f"the loss of learner {self.name!r} returned no term"
        assert set(mix) <= set(rows), f"mix names {sorted(mix)}, but the loss returned {sorted(rows)}"
        sums = {}
        for term, values in rows.items():
            assert values.shape == (count,), (
                f"term {term!r} of learner {self.name!r} must have one value a row, {(count,)}, "
                f"not {tuple(values.shape)}"
            )
            if filler or not micros.weight(term):  # selected, not multiplied by zero: a row may be NaN
                values = torch.where(torch.zeros_like(values, dtype=torch.bool), values, 0.0)
            exact = torch.promote_types(values.dtype, torch.float32)  # bf16 rows must not be summed in bf16
            sums[term] = values.sum(dtype=exact)
        total = reduce(add, [sums[term] * (mix.get(term, 1.0) / (micros.weight(term) or 1.0)) for term in sums])
        return total, {term: value.detach() for term, value in sums.items()}

    def _boost(self) -> Tensor:
        """What gradients are multiplied by from the start of the backward pass. The mean over ranks is to be a sum;
        fp16 does that afterwards, so that what overflows does not depend on the number of ranks."""
        return self._scale.scale if self._scale else self._ranks

    def _check_called(self) -> None:
        if not self._parallel.called:
            raise RunFailed(
                f"the loss of learner {self.name!r} did not call the module it was given but went around it "
                "(for example through .module), which would skip gradient synchronisation"
            )

    def _apply(self, micros: Micros, total: Tensor, sums: Mapping[str, Tensor], same: bool = False) -> Metrics:
        """Clip, check, step, and say what happened, all without waiting for the device."""
        if self._detour != 1.0:
            torch._foreach_div_([local(gradient) for gradient in self._gradients()], self._detour)
        if self.recorder:
            self.recorder.gradients(self.name, self._parallel.inner)
        gradients = self._gradients()
        norm = total_norm(gradients)
        if self._scale:
            norm = norm * (self.world.size / self._scale.scale)
        bad = (~(norm < torch.inf)).float()  # also where it is NaN
        rate = self._rate(self.updates)
        self._step(gradients, norm, bad, rate)
        blamed = bad
        if self._scale:
            blamed = bad * (self._scale.scale <= 1)  # an overflow is nobody's fault while the scale can still fall
            self._scale.update(bad)
        self.updates += 1
        if self.recorder:
            self.recorder.parameters(self.name, self._parallel.inner, micros)
        self._guard.watch(blamed, micros)
        return self._figures(micros, total, sums, norm, bad, rate, same)

    def _gradients(self) -> list[Tensor]:
        gradients = [p.grad for _, p in self._trained if p.grad is not None]
        if self._parallel.needs_all and len(gradients) < len(self._trained):
            lacking = [name for name, p in self._trained if p.grad is None]
            raise RunFailed(
                f"{len(lacking)} parameters of learner {self.name!r} got no gradient in this step, the first of them "
                f"{lacking[0]!r}; use them in every loss, or name them in the recipe's `unused`"
            )
        return gradients

    def _step(self, gradients: list[Tensor], norm: Tensor, bad: Tensor, rate: float) -> None:
        """The fused optimizer divides gradients by `grad_scale`, and does nothing where `found_inf` is one."""
        clip = self._settings.clip
        # As torch's clip_grad_norm_ has it.
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        if self._scale:
            divisor = divisor * (self._scale.scale / self.world.size)
        if norm.dtype == torch.float64:  # the fused divisor is float32, too coarse for a proof in float64
            torch._foreach_div_([local(gradient) for gradient in gradients], divisor)
        else:
            self._optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._drop_gradients()

    def _figures(
        self,
        micros: Micros,
        total: Tensor,
        sums: Mapping[str, Tensor],
        norm: Tensor,
        bad: Tensor,
        rate: float,
        same: bool,
    ) -> Metrics:
        """Figures of this update."""
        figures = {term: Figure(value, micros.weight(term), same, bad) for term, value in sums.items()}
        figures["loss"] = Figure(total, 1.0, same, bad)
        figures["grad_norm"] = Figure(norm, 1.0, same=True, skipped=bad)
        figures["lr"] = Figure(rate, same=True)
        figures["skipped"] = Figure(bad, same=True)
        prefix = "" if self.name == "model" else f"{self.name}/"
        counts = {f"count/{name}": Figure(weight, same=True) for name, weight in micros.weights.items()}
        return {**{prefix + name: figure for name, figure in figures.items()}, **counts}

    def _weightless(self, micros: Micros, sums: Mapping[str, Tensor]) -> bool:
        """Whether none of the loss's terms weighs anything; the weights are global, so all ranks say the same."""
        return not any(micros.weight(term) for term in sums)

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
        return self._parallel.waited

    def settle(self) -> None:
        """Read what is still on its way from the device; raises when too many steps in a row were bad."""
        self._guard.settle()

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
