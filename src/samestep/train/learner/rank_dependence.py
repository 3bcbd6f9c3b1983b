"""What makes a run depend on the number of ranks, found while the first micro-batch of a launch is computed.

Random numbers from torch's own generators differ by rank, and BatchNorm normalises by the rows that share a
micro-batch. Neither is refused, but a warning names the module and the fix. So it is with a loss whose value of a row
depends on the other rows: it is computed once more beside others.

Every call of a torch function is traced, to see whether a generator moved during it; module hooks show which module
called. So a dropout of probability 0, or one in evaluation mode, is no finding. Generators are only read, and the
results keep their bits. A compiled network is not traced, because the tracing would be compiled in: there the modules
are listed, and all that is known is whether a generator moved.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, resolve_name

from samestep.data.loading import Batch
from samestep.parallel.compiling import repeat_rows
from samestep.parallel.wrap import Parallel, uncompiled, warm_up
from samestep.train.learner.batch_norm import has_global_batch_norm, takes_micro_batch_statistics
from samestep.train.learner.dropout import is_replaceable
from samestep.train.learner.gradient_weighting import Loss, check_terms
from samestep.world.world import World

logger = logging.getLogger(__name__)

_BY_RANK = "from torch's own generator, which differs by rank, so the run depends on the number of ranks"
_SENTENCES = {
    "replaceable": f"{{what}} in {{where}} draws its mask {_BY_RANK}; use samestep.keyed_dropout(model)",
    "dropout": f"{{what}} in {{where}} draws a dropout mask {_BY_RANK}; set its probability to 0, or use "
    'samestep.noise.dropout keyed by batch["ids"]',
    "draw": f'{{what}} in {{where}} draws {_BY_RANK}; use samestep.noise keyed by batch["ids"]',
    "statistics": "{what} in {where} normalises by the statistics of a micro-batch, so the run depends on how a batch "
    "is split; use samestep.global_batch_norm(model), which replaces nn.BatchNorm modules, or LayerNorm or GroupNorm, "
    "or put the BatchNorm modules into evaluation mode",
}
"""By kind of finding."""
_MEAN = (
    "{term!r} is one number for all rows of a micro-batch, such as a mean, so the run depends on how a batch is split; "
    'give each row its own value (torch\'s losses: reduction="none"), the runtime takes the mean of the global batch'
)
_MIXED = (
    "the value of a row in {term!r} changes with the other rows of its micro-batch, so the run depends "
    "on how a batch is split; look for a mean over rows, or for shapes [rows] and [rows, 1] in one expression, which "
    "broadcast to [rows, rows]. For losses that compare rows there is learner.update_coupled"
)
_LOW_PRECISION, _ROUNDING = 0.01, 1e-4
"""By what share of the largest value rounding may change a row beside others."""
_WITH_DROPOUT = {"scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Functions that draw nothing but dropout masks, besides those with dropout in their name."""
_BATCH_NORMS = (nn.functional.batch_norm, torch.batch_norm)
# In evaluation mode these have a fast path, which they do not take where torch's functions are traced.
_WITH_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


@contextmanager
def finding_rank_dependence(
    network: nn.Module, device: torch.device, loss: Callable[..., object], is_compiled: bool = False
) -> Iterator[list[str]]:
    """Around one call of `loss`, which calls the network; afterwards the list holds a sentence for each finding.

    `is_compiled`: the call is compiled, as it also is where torch.compile has made the network or the loss."""
    sentences: list[str] = []
    findings, before = _Findings(network), _generators(device)
    compiled = is_compiled or _is_compiled(network, loss)
    with nullcontext() if compiled else _tracing(findings, device):
        yield sentences
    if compiled:
        findings.list_modules(network)
    drew = not _equal(before, _generators(device))  # unless the loss itself put a generator back
    sentences += findings.sentences(drew)


def check_first_call(
    name: str,
    parallel: Parallel,
    world: World,
    call: Callable[[Loss, Batch], Mapping[str, Tensor]],
    loss: Loss,
    batch: Batch,
    rounded: bool,
) -> tuple[Mapping[str, Tensor], list[str]]:
    """What `call` returns for the loss of a learner's first micro-batch, and what was found, which rank 0 warns of.
    Every rank calls it alike. `rounded`: it is computed in low precision."""
    mixes_rows = has_global_batch_norm(parallel.inner)  # it is meant to, and not by how a batch is split
    beside_others = {} if mixes_rows else _call_beside_others(name, parallel, call, loss, batch)
    is_compiled = parallel.compiler is not None
    with finding_rank_dependence(parallel.inner, world.device, loss, is_compiled) as sentences:
        rows = call(loss, batch)
    if not sentences:  # else it is known why a row's value changes
        for term, values in rows.items():
            if term in beside_others and _is_mixed(values, beside_others[term], rounded):
                sentences.append((_MEAN if bool((values == values[0]).all()) else _MIXED).format(term=term))
    found = world.gather(sentences)  # a micro-batch of one row shows less than those of other ranks
    sentences = list(dict.fromkeys(sentence for each in found for sentence in each))
    for sentence in sentences if world.is_main else ():
        logger.warning("learner %r: %s", name, sentence)
    return rows, sentences


def _call_beside_others(
    name: str, parallel: Parallel, call: Callable[[Loss, Batch], Mapping[str, Tensor]], loss: Loss, batch: Batch
) -> dict[str, Tensor]:
    """The first half of the rows again, beside copies of the first row; nothing of it stays."""
    count = len(batch["live"])
    kept = count - count // 2
    changed = repeat_rows({name: value[:kept] for name, value in batch.items()}, count)
    found: dict[str, Tensor] = {}

    def call_changed() -> None:
        with torch.no_grad(), uncompiled(parallel):
            again = call(loss, changed)
        check_terms(f"the loss of learner {name!r}", again)
        found.update(again)

    warm_up(parallel.inner, call_changed)
    return {name: values[:kept] for name, values in found.items() if isinstance(values, Tensor) and values.dim()}


def _is_mixed(values: Tensor, again: Tensor, rounded: bool) -> bool:
    """Whether rows have another value beside others, by more than rounding."""
    if values.dim() == 0 or len(values) < 2 or not values.is_floating_point() or values.shape[1:] != again.shape[1:]:
        return False  # refused elsewhere, or too few to tell
    values = values.detach().double()
    is_low = rounded or again.dtype in (torch.bfloat16, torch.float16)
    most = (_LOW_PRECISION if is_low else _ROUNDING) * values.abs().max()
    return bool((values[: len(again)] - again.double()).abs().max() > most)


class _Findings:
    """What was found, by kind and function, with all modules in which it was found."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._names = {module: name for name, module in network.named_modules()}
        self._places: dict[tuple[str, str], list[str]] = {}

    def drew(self, function: Callable[..., Any], caller: nn.Module | None) -> None:
        """A generator moved during a call."""
        name = resolve_name(function) or getattr(function, "__name__", str(function))
        if caller is not None and caller in self._names and is_replaceable(caller):
            self._add("replaceable", _class_name(caller), caller)
        elif "dropout" in name or name.rpartition(".")[2] in _WITH_DROPOUT:
            self._add("dropout", name, caller)
        else:
            self._add("draw", name, caller)

    def took_statistics(self, caller: nn.Module | None) -> None:
        """A batch was normalised by its own statistics."""
        what = _class_name(caller) if isinstance(caller, _BatchNorm) else "torch.nn.functional.batch_norm"
        self._add("statistics", what, caller)

    def list_modules(self, network: nn.Module) -> None:
        """Findings from the modules alone, without a trace."""
        for module in network.modules():
            if module.training and takes_micro_batch_statistics(module):
                self.took_statistics(module)
            elif module.training and is_replaceable(module) and module.p:
                self._add("replaceable", _class_name(module), module)
            elif module.training and isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout:
                self._add("dropout", _class_name(module), module)

    def sentences(self, drew: bool) -> list[str]:
        """One for each kind and function; those about draws only where a generator moved in the end."""
        places = {key: where for key, where in self._places.items() if drew or key[0] == "statistics"}
        if drew and all(kind == "statistics" for kind, _ in places):
            places["draw", "something"] = ["the loss"]
        return [_SENTENCES[kind].format(what=what, where=_several(where)) for (kind, what), where in places.items()]

    def _add(self, kind: str, what: str, caller: nn.Module | None) -> None:
        places = self._places.setdefault((kind, what), [])
        place = self._place(caller)
        if place not in places:
            places.append(place)

    def _place(self, caller: nn.Module | None) -> str:
        if caller is None:
            return "the loss"
        if caller not in self._names:
            if any(part is self._network for part in caller.modules()):
                return "the loss"  # DDP calls it, from a module around the network
            return f"a {type(caller).__name__} that is not part of the network"
        return repr(self._names[caller]) if self._names[caller] else "the network itself"


class _Tracer(TorchFunctionMode):
    """Sees every call of a torch function."""

    def __init__(self, findings: _Findings, device: torch.device) -> None:
        super().__init__()
        self._findings, self._device = findings, device
        self._callers: list[tuple[nn.Module, ExitStack]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        before = _generators(self._device)
        result = func(*args, **kwargs)
        caller = self._callers[-1][0] if self._callers else None
        if not _equal(before, _generators(self._device)):
            self._findings.drew(func, caller)
        if func in _BATCH_NORMS and not isinstance(caller, _BatchNorm) and _argument(args, kwargs, 5, "training"):
            self._findings.took_statistics(caller)
        return result

    def enter_module(self, module: nn.Module, args: object) -> None:
        if torch.compiler.is_compiling():
            return
        untraced = ExitStack()
        if isinstance(module, _WITH_FAST_PATH) and not module.training:
            untraced.enter_context(torch._C.DisableTorchFunction())
        self._callers.append((module, untraced))
        if takes_micro_batch_statistics(module):
            self._findings.took_statistics(module)

    def leave_module(self, module: nn.Module, args: object, result: object) -> None:
        """A module has returned, or failed."""
        if self._callers and not torch.compiler.is_compiling():
            self._callers.pop()[1].close()


@contextmanager
def _tracing(findings: _Findings, device: torch.device) -> Iterator[None]:
    """Trace functions and modules, also modules that are not part of the network."""
    tracer = _Tracer(findings, device)
    handles = [
        register_module_forward_pre_hook(tracer.enter_module),
        register_module_forward_hook(tracer.leave_module, always_call=True),
    ]
    try:
        with tracer:
            yield
    finally:
        for handle in handles:
            handle.remove()


def _is_compiled(network: nn.Module, loss: Callable[..., object]) -> bool:
    """Whether calls go through torch.compile: of the network, a part of it, or the loss."""
    parts = any(part._compiled_call_impl is not None or "_orig_mod" in part._modules for part in network.modules())
    return parts or hasattr(loss, "_torchdynamo_orig_callable")


def _generators(device: torch.device) -> list[Tensor]:
    """The states of torch's own generators; on the host, without waiting for the device."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _equal(before: list[Tensor], now: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, now))


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    """An argument of a call, by its position or by its name; None where it was not given."""
    return kwargs.get(name, args[position] if len(args) > position else None)


def _class_name(module: nn.Module) -> str:
    kind = type(module)
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.") else kind.__name__


def _several(places: list[str]) -> str:
    """The first place, and how many more there are."""
    more = len(places) - 1
    return places[0] + (f" and {more} more place{'s' * (more > 1)}" if more else "")
