"""The repeated blocks of a network: what is sharded one by one, and what may be computed again in the backward pass.

Activation checkpointing does not keep what a block computes inside; the backward pass computes it again. It costs time,
saves memory, and does not change any number.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from samestep.core.errors import UserError
from samestep.parallel.precision import are_cast, weight_places, weights_at

State = Callable[[], AbstractContextManager[Any]]
_COSTLY = (
    "mm",
    "addmm",
    "bmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
"""Operations that selective checkpointing does not repeat: their results are small for what they cost."""


def find_blocks(module: nn.Module) -> list[nn.Module]:
    """The blocks that `module.shard_units` lists, or else the entries of its outermost lists of equal modules."""
    given: Sequence[nn.Module] | None = getattr(module, "shard_units", None)
    return list(given) if given is not None else _outermost_blocks(module)


def _outermost_blocks(module: nn.Module) -> list[nn.Module]:
    """Most libraries keep the layers of a network in a ModuleList; the experts inside of a layer are part of it."""
    if isinstance(module, nn.ModuleList):
        kinds = {type(part) for part in module}
        if len(module) > 1 and len(kinds) == 1 and all(_has_own_forward(part) for part in module):
            return list(module)
    return [block for part in module.children() for block in _outermost_blocks(part)]


def _has_own_forward(module: nn.Module) -> bool:
    """Whether it has parameters and is more than one of torch's own layers."""
    return any(True for _ in module.parameters()) and any(True for _ in module.children())


def checkpoint_activations(module: nn.Module, mode: str) -> None:
    """Let the blocks compute themselves again in the backward pass: `none`, `full`, `selective` (keeps the results of
    matrix products and attention), or a number n: every n-th block."""
    if mode == "none":
        return
    blocks = find_blocks(module)
    if not blocks:
        raise UserError(
            f"activation_checkpointing={mode} needs the blocks of {type(module).__name__}, but it has no list of equal "
            "modules; list them in an attribute `shard_units`, or set activation_checkpointing=none"
        )
    for block in blocks[:: _every(mode)]:
        never_trains = not any(parameter.requires_grad for parameter in block.parameters())
        block.forward = partial(_forward_again, block, block.forward, mode == "selective", never_trains)


def _every(mode: str) -> int:
    if mode in ("full", "selective"):
        return 1
    if not mode.isdigit() or int(mode) < 1:
        raise UserError(
            f"activation_checkpointing must be none, full, selective, or a number n for every n-th block, not {mode!r}"
        )
    return int(mode)


def _forward_again(
    block: nn.Module, forward: Callable[..., Any], selective: bool, never_trains: bool, *args: Any, **kwargs: Any
) -> Any:
    # Where the weights are held constant the backward pass must not compute again: by then they would need gradients.
    # Those that never train may be computed with again, for the gradients of what the block is called with.
    is_held_constant = not never_trains and not any(parameter.requires_grad for parameter in block.parameters())
    if is_held_constant or not torch.is_grad_enabled() or _grows_cache(args, kwargs):
        return forward(*args, **kwargs)
    if kwargs.get("past_key_values") is not None:  # transformers' cache: computing again would append to it again
        kwargs["past_key_values"] = None
    contexts: dict[str, Any] = {"context_fn": _keep_costly} if selective else {}
    return checkpoint(_as_now(block, forward), *args, use_reentrant=False, **contexts, **kwargs)


def _grows_cache(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a block is called with a cache through which gradients flow: computing again would add to it again."""
    return any(getattr(value, "is_differentiable", False) is True for value in (*args, *kwargs.values()))


def _as_now(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """In the backward pass the block has its own weights again, no longer those that were cast for the forward pass,
    and its state may be another. A block that is called in several states has a function `keep_state`; what that
    returns gives a context in which the block is as it was then."""
    keep_state: Callable[[], State] = getattr(block, "keep_state", lambda: nullcontext)
    if torch.compiler.is_compiling():  # what is compiled has its backward pass in it
        return forward
    places = weight_places(block) if are_cast(block) else []
    state = keep_state()
    if not places and state is nullcontext:
        return forward

    def compute(*args: Any, **kwargs: Any) -> Any:
        with weights_at(places), state():
            return forward(*args, **kwargs)

    return compute


def _keep_costly() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    costly = getattr(operation, "_opname", "") in _COSTLY
    return CheckpointPolicy.MUST_SAVE if costly else CheckpointPolicy.PREFER_RECOMPUTE
