"""First weights of a network with adapters, and its names in files.

A source holds either a base (a plain weight file, a run without adapters) or adapters (a run with adapters, one of its
checkpoints or weight files, a folder that peft wrote). A base is in no checkpoint, so a resume reads it again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from samestep.checkpoint.weight_files import check_shapes
from samestep.checkpoint.weight_sources import RenamedWeights, WeightSource
from samestep.core.errors import UserError
from samestep.core.json_files import parse_json
from samestep.parallel.build import FillFunction, build_uninitialized
from samestep.train.learner.initialization import build_fresh, draw_parameters
from samestep.train.learner.lora import (
    Lora,
    add_adapters,
    draw_adapters,
    frozen_names,
    has_adapters,
    is_adapter_name,
    plain_name,
    trained_names,
)

PEFT_CONFIG = "adapter_config.json"
"""The file beside the adapters in a folder that peft wrote."""


def holds_adapters(source: WeightSource) -> bool:
    """Whether a source holds adapters; if not, it can hold a base."""
    return any(is_adapter_name(name) for name in source.layout)


def fill_adapted(network: nn.Module, source: WeightSource, what: str, outer: str) -> None:
    """Fill the adapters or the base of a network, whichever a source holds; refuse one that does not fit.

    `outer` is what the names of a base may have in front.
    """
    theirs = {plain_name(name): name for name in source.layout}
    own = {plain_name(name): (name, tensor) for name, tensor in network.state_dict().items()}
    if holds_adapters(source):
        trained = trained_names(network)
        base = {plain_name(name) for name in frozen_names(network) if not is_adapter_name(name)}
        # Buffers are in a run's checkpoint, but not in what peft saves.
        wanted = {
            plain: tensor
            for plain, (name, tensor) in own.items()
            if name in trained or (plain in theirs and plain not in base)
        }
        if base & theirs.keys():
            raise UserError(f"the {what} are those of a base and of adapters; save each to a file, and give one")
    else:
        wanted = {plain: tensor for plain, (_, tensor) in own.items() if not is_adapter_name(plain)}
        if wanted.keys().isdisjoint(theirs) and any(outer + name in theirs for name in wanted):
            wanted = {outer + name: tensor for name, tensor in wanted.items()}
    plain = RenamedWeights(source, theirs)
    check_shapes(plain.layout, {name: tensor.shape for name, tensor in wanted.items()}, what)
    plain.fill(wanted)


def check_peft_folder(folder: Path, lora: Lora | None) -> None:
    """Refuse a folder of peft whose adapters count more or less than those that are trained here."""
    file = folder / PEFT_CONFIG
    if lora is None or not file.is_file():
        return
    try:
        known = parse_json(file.read_bytes())
        theirs = float(known["lora_alpha"]), int(known["r"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise UserError(f"{file} does not say lora_alpha and r; fetch or copy it again") from None
    if theirs != (float(lora.alpha), lora.rank):
        raise UserError(
            f"the adapters in {folder} have rank {theirs[1]} and alpha {theirs[0]:g}, but this run has "
            f"Lora(rank={lora.rank}, alpha={lora.alpha:g}); use theirs"
        )


def build_adapted(
    given: nn.Module | Callable[[], nn.Module],
    lora: Lora | None,
    *,
    learner: str,
    seed: int,
    initial: FillFunction | None,
    initial_is_base: bool,
) -> tuple[nn.Module, FillFunction | None]:
    """A network with adapters, and the function that fills it: with the adapters' first values, then with `initial`.

    It is built without memory if `initial` fills all of the base, or if it offers `init_parameter`.
    """
    base_fill: FillFunction | None = None
    if isinstance(given, nn.Module):
        network = given
    elif initial_is_base:
        network = build_uninitialized(given)
    else:
        network, drawn = build_fresh(given, seed, learner)
        if drawn is not None:
            base_fill = partial(draw_parameters, seed=seed, learner=learner, known_as=_known_as)
    if lora is None:  # a network that came with adapters
        return network, initial
    network = add_adapters(network, lora)

    def fill(module: nn.Module) -> None:
        draw_adapters(module, seed, learner)
        for more in (base_fill, initial):
            if more is not None:
                more(module)

    return network, fill


def _known_as(name: str) -> str | None:
    return None if is_adapter_name(name) else plain_name(name)


def refuse_built_adapters(network: nn.Module) -> None:
    """Refuse adapters in a network that a function built, since they were not known beforehand."""
    if has_adapters(network):
        raise UserError(
            "the function builds a network that has adapters already; let it build the network without them and use "
            "lora=Lora(...), or give the network itself"
        )
