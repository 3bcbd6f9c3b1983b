"""Attention of compiled networks whose mask is causal and nothing more.

Kernels skip what a causal mask hides, but only where `is_causal` says so and no mask is given. Some networks
(transformers) leave their mask out when they find it causal, but cannot look at values while torch.compile traces them:
compiled, their attention took three times as long. A mask that is computed from constants alone, by operations that
are known to give the same every time, is looked at here. Under fsdp each block is a graph of its own, into which the
mask comes as an input: there it stays.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Those that may be given by position."""
_MAKING = frozenset({"arange", "ones", "zeros", "full", "new_ones", "new_zeros", "new_full", "ones_like", "zeros_like"})
_RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARING = frozenset({*_RELATIONS, "and_", "or_", "xor", "invert", "logical_and", "logical_or"}) | {
    f"__{name}__"
    for name in _RELATIONS  # which is how torch 2.11 records `a == b`
}
_COMPUTING = frozenset({"add", "sub", "mul", "neg", "logical_not", "diff", "cumsum", "tril", "triu", "where", "clone"})
_SHAPING = frozenset({"getitem", "view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "transpose", "to"})
_KNOWN = _MAKING | _COMPARING | _COMPUTING | _SHAPING | {"bool", "int", "long", "contiguous", "broadcast_to"}
"""Operations, as functions or methods, that give the same whenever they are computed, and write to nothing."""
_IN_PLACE = frozenset(
    {"setitem", *(f"i{name}" for name in ("and", "or", "xor", "add", "sub", "mul", "truediv", "pow"))}
)


def drop_causal_masks(module: fx.GraphModule, causal: Mapping[fx.Node, int] | None = None) -> int:
    """Let attention say `is_causal` where its mask is causal in every call. `causal` are inputs that are such masks,
    with the number of their rows and columns.

    Returns the number of calls that were changed.
    """
    masks = _Masks(module, causal or {})
    changed = 0
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is scaled_dot_product_attention:
            changed += _drop_mask(node, masks)
        elif (region := _checkpointed(module, node)) is not None:
            inputs = [each for each in region.graph.nodes if each.op == "placeholder"]
            lengths = [masks.causal_length(outside) for outside in node.args[1:]]
            given = {inside: length for inside, length in zip(inputs, lengths, strict=True) if length}
            changed += drop_causal_masks(region, given) if given else 0
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _checkpointed(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """The graph of a block that is computed again in the backward pass, if a node calls one with these inputs alone."""
    if node.op != "call_function" or _name(node) != "tag_activation_checkpoint":
        return None
    first = node.args[0]
    if not isinstance(first, fx.Node) or first.op != "get_attr" or len(first.users) > 1:
        return None
    found = getattr(module, str(first.target), None)
    if not isinstance(found, fx.GraphModule):
        return None
    inputs = sum(each.op == "placeholder" for each in found.graph.nodes)
    return found if inputs == len(node.args) - 1 else None


def _drop_mask(node: fx.Node, masks: "_Masks") -> int:
    """1 if it had a causal mask for all of its queries and keys."""
    arguments: dict[str, Any] = {**dict(zip(_ARGUMENTS, node.args)), **node.kwargs}
    if arguments.get("is_causal") or not isinstance(arguments.get("attn_mask"), fx.Node):
        return 0
    lengths = {_length(arguments["query"]), _length(arguments["key"])}
    if lengths != {masks.causal_length(arguments["attn_mask"])} or None in lengths:
        return 0
    arguments |= {"attn_mask": None, "is_causal": True}
    node.args = tuple(arguments.pop(name) for name in _ARGUMENTS[:3])
    node.kwargs = arguments
    return 1


def _length(node: Any) -> int | None:
    """The number of positions of queries or keys."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    length = value.shape[-2] if isinstance(value, Tensor) and value.dim() > 1 else None
    return length if isinstance(length, int) else None


class _Masks:
    """Which nodes of a graph are causal masks, whatever the inputs of the graph are."""

    def __init__(self, module: fx.GraphModule, causal: Mapping[fx.Node, int]) -> None:
        self._module = module
        self._known: dict[fx.Node, int | None] = dict(causal)

    def causal_length(self, mask: Any) -> int | None:
        """The number of rows and columns of a mask that is causal in every call; None: it is no such mask."""
        if not isinstance(mask, fx.Node):
            return None
        if mask not in self._known:
            needed = _needed(mask)
            is_constant = all(_is_known(node) for node in needed) and not self._is_written(set(needed))
            self._known[mask] = _causal_length(self._value(mask, needed)) if is_constant else None
        return self._known[mask]

    def _is_written(self, nodes: set[fx.Node]) -> bool:
        """Whether something in the graph writes to one of these, or to a view of it: views come from a first
        argument."""
        for writer in self._module.graph.nodes:
            written = writer.kwargs.get("out") or (writer.args[0] if writer.args and _writes(writer) else None)
            while isinstance(written, fx.Node):
                if written in nodes:
                    return True
                written = written.args[0] if written.args else None
        return False

    def _value(self, mask: fx.Node, needed: Iterable[fx.Node]) -> Any:
        """Computed now, for real; None if that fails, such as for lack of memory."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[mask])
        try:
            with torch.no_grad():
                return fx.GraphModule(self._module, graph)()
        except Exception:
            return None


def _needed(node: fx.Node) -> list[fx.Node]:
    """The node and all that it is computed from, in order."""
    found, open_nodes = {node}, [node]
    while open_nodes:
        for each in open_nodes.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                open_nodes.append(each)
    return [each for each in node.graph.nodes if each in found]


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_known(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and _name(node) in _KNOWN


def _writes(node: fx.Node) -> bool:
    """Whether it changes its first argument in place."""
    name = _name(node)
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name not in _KNOWN)


def _causal_length(mask: Any) -> int | None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() < 2:
        return None
    length, width = mask.shape[-2:]
    wanted = torch.ones(length, width, dtype=torch.bool, device=mask.device).tril()
    return length if length == width and torch.equal(mask, wanted.expand_as(mask)) else None
