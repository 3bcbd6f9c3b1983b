"""Attention of compiled networks whose mask is causal and nothing more.

Kernels skip what a causal mask hides, but only where `is_causal` says so and no mask is given. Some networks
(transformers) leave their mask out when they find it causal, but cannot look at values while torch.compile traces them:
compiled, their attention took three times as long. A mask that is computed from constants alone is the same in every
call, so it is looked at here.
"""

from collections.abc import Collection, Iterable
from operator import setitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Those that may be given by position."""
_NOT_CONSTANT = ("placeholder", "get_attr")


def drop_causal_masks(module: fx.GraphModule, causal: Collection[fx.Node] = ()) -> int:
    """Let attention say `is_causal` where its mask is causal in every call; `causal` are inputs that are such masks.

    Returns the number of calls that were changed.
    """
    masks = _Masks(module, causal)
    changed = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is scaled_dot_product_attention:
            changed += _drop_mask(node, masks)
        elif (region := _region_of(module, node)) is not None:  # blocks that are computed again in the backward pass
            inputs = [each for each in region.graph.nodes if each.op == "placeholder"]
            given = {inside for inside, outside in zip(inputs, node.args[1:]) if masks.is_causal(outside)}
            changed += drop_causal_masks(region, given) if given else 0
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _region_of(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """The graph that a node calls, with the rest of its arguments."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node) or first.op != "get_attr":
        return None
    found = getattr(module, str(first.target), None)
    return found if isinstance(found, fx.GraphModule) else None


def _drop_mask(node: fx.Node, masks: "_Masks") -> int:
    """1 if it had a causal mask."""
    arguments: dict[str, Any] = {**dict(zip(_ARGUMENTS, node.args)), **node.kwargs}
    if arguments.get("is_causal") or not masks.is_causal(arguments.get("attn_mask")):
        return 0
    arguments |= {"attn_mask": None, "is_causal": True}
    node.args = tuple(arguments.pop(name) for name in _ARGUMENTS[:3])
    node.kwargs = arguments
    return 1


class _Masks:
    """Which nodes of a graph are causal masks, whatever the inputs of the graph are."""

    def __init__(self, module: fx.GraphModule, causal: Collection[fx.Node]) -> None:
        self._module = module
        self._known = dict.fromkeys(causal, True)
        self._values: dict[fx.Node, Any] = {}

    def is_causal(self, mask: Any) -> bool:
        if not isinstance(mask, fx.Node):
            return False
        if mask not in self._known:
            needed = _needed(mask)
            is_constant = not any(node.op in _NOT_CONSTANT or _is_random(node) for node in needed)
            is_constant = is_constant and not self._is_written(set(needed))
            self._known[mask] = is_constant and _is_causal(self._value(mask, needed))
        return self._known[mask]

    def _is_written(self, nodes: set[fx.Node]) -> bool:
        """Whether something else in the graph writes to one of these, or to a view of it: views come from a first
        argument."""
        for writer in self._module.graph.nodes:
            written = writer.kwargs.get("out") or (writer.args[0] if writer.args and _writes(writer) else None)
            while isinstance(written, fx.Node) and writer not in nodes:
                if written in nodes:
                    return True
                written = written.args[0] if written.args else None
        return False

    def _value(self, mask: fx.Node, needed: Iterable[fx.Node]) -> Any:
        """Computed now, for real."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[mask])
        with torch.no_grad():
            return fx.GraphModule(self._module, graph)()


def _needed(node: fx.Node) -> list[fx.Node]:
    """The node and all that it is computed from, in order."""
    found, open_nodes = {node}, [node]
    while open_nodes:
        for each in open_nodes.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                open_nodes.append(each)
    return [each for each in node.graph.nodes if each in found]


def _writes(node: fx.Node) -> bool:
    """Whether it changes its first argument in place."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.target is setitem or (name.endswith("_") and not name.endswith("__"))


def _is_random(node: fx.Node) -> bool:
    return node.is_impure() or "rand" in str(node.target) or "dropout" in str(node.target)


def _is_causal(mask: Any) -> bool:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() < 2:
        return False
    length, width = mask.shape[-2:]
    wanted = torch.ones(length, width, dtype=torch.bool, device=mask.device).tril()
    return length == width and torch.equal(mask, wanted.expand_as(mask))
