"""Log-probabilities of completions under a causal network, without logits of the whole batch in memory.

    found = completion_log_probs(network, prompt, prompt_mask, completion, completion_mask, temperature=0.7)
    found.log_probs        # [rows, completion], 0 where the completion is padded

For 8 rows of 1,024 tokens and 128 thousand tokens to choose from, logits in float32 take 4 GiB, and their gradients as
much again. So the head is called for a few positions at a time, and once more in the backward pass. For this it is
replaced while the network is called: the network is still called as a whole, as DDP and FSDP need it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from samestep.core.errors import UserError
from samestep.models.decoding import forward_arguments, text_config
from samestep.models.wide import wide

AT_ONCE = 2**24
"""Logits that exist at once: 64 MiB in float32, and a few times that with what is computed from them."""
_CHANGING_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings of models of transformers that do something to what the head returns."""


class TokenLogProbs(NamedTuple):
    """For each token of a completion [rows, completion], 0 where it is padded; in at least float32."""

    log_probs: Tensor
    entropy: Tensor | None
    """Of the distribution that the token is taken from, if it was asked for."""


def completion_log_probs(
    network: nn.Module,
    prompt: Tensor,
    prompt_mask: Tensor,
    completion: Tensor,
    completion_mask: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    padding_free: bool = False,
) -> TokenLogProbs:
    """The log-probabilities of completions after their prompts, differentiable.

    Tokens are [rows, width]; the masks are true where there is a real one, so it makes no difference on which side a
    row is padded, or with what. Every prompt needs a token: the first of a completion without one gets NaN.
    With `padding_free` the network, one of transformers, gets all rows one after the other as a single row.
    """
    if padding_free and not torch.compiler.is_compiling():
        check_padding_free(network)
    pack = _pack_in_one_row if padding_free else _pack
    rows = pack(prompt, prompt_mask.bool(), completion, completion_mask.bool())
    function = _Measure(temperature, entropy)
    head = _plain_head(network)
    if head is None or torch.compiler.is_compiling():  # a compiler fuses what follows
        values = _in_parts(
            function, _at(_logits(network, rows.tokens, rows.position_ids), rows.positions), rows.targets
        )
    else:
        values = _through_head(network, head, rows, function)
    real = completion_mask.bool()
    if padding_free:
        values = tuple(torch.zeros_like(real, dtype=value.dtype).masked_scatter(real, value) for value in values)
    nan = torch.full((), torch.nan, dtype=values[0].dtype, device=values[0].device)
    found = [torch.where(real, torch.where(rows.is_first, nan, value), 0.0) for value in values]
    return TokenLogProbs(found[0], found[1] if entropy else None)


def check_padding_free(network: nn.Module) -> None:
    """Refuse a network that reads beyond the beginning of a text: layers with a state, or a convolution before one, do
    not see by the positions where a text ends."""
    kinds = getattr(text_config(network), "layer_types", None) or ()
    if any(isinstance(part, nn.Conv1d) for part in network.modules()) or any("linear" in kind for kind in kinds):
        raise UserError(
            f"{type(network).__name__} cannot be called without padding: some of its layers would mix texts that "
            "stand behind each other; set padding_free to false"
        )


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """The log-probabilities of tokens [...] under logits [..., vocabulary] / temperature, in at least float32.

    Temperature 0, at which the likeliest token is certain, is taken as 1.
    """
    return _Measure(temperature, entropy=False)(logits, tokens)[0]


def last_logits(network: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits [rows, vocabulary] after the last real token of each row, differentiable.

    `mask` [rows, width] is true where there is a real token; every row needs one. The head is called for these alone.
    """
    real = mask.bool()
    last = real.sum(1, keepdim=True) - 1
    find: Callable[[], nn.Module | None] | None = getattr(network, "get_output_embeddings", None)
    head = find() if find is not None else None
    if head is None or torch.compiler.is_compiling():  # a compiler cannot follow the replaced head
        return _at(_logits(network, _to_the_left(tokens, real)), last)[:, 0]
    forward = head.forward
    with _replaced_forward(head, lambda hidden: forward(_at(hidden, last))):
        return _logits(network, _to_the_left(tokens, real))[:, 0]


class _Rows(NamedTuple):
    """Rows without padding but at their ends, so that a causal network needs no mask."""

    tokens: Tensor
    """[rows, width]"""
    positions: Tensor
    """Where the network says what comes next, for each token of a completion: [rows, completion]."""
    targets: Tensor
    """The tokens of the completions."""
    is_first: Tensor
    """Whether nothing stands before a token of a completion."""
    position_ids: Tensor | None = None
    """The position of each token in its own text, where several texts are in one row."""


def _pack(prompt: Tensor, prompt_mask: Tensor, completion: Tensor, completion_mask: Tensor) -> _Rows:
    real = torch.cat((prompt_mask, completion_mask), 1)
    tokens = _to_the_left(torch.cat((prompt, completion), 1), real)
    before = real.long().cumsum(1)[:, prompt.shape[1] :] - 2  # its own place is one further
    targets = torch.where(completion_mask, completion, 0)
    return _Rows(tokens, before.clamp(min=0), targets, before < 0)


def _to_the_left(tokens: Tensor, real: Tensor) -> Tensor:
    """The real tokens of each row, then padding, which a causal network sees from no real token: it needs no mask."""
    tokens = torch.where(real, tokens, 0)  # padding may be any number, such as -100
    return tokens.gather(1, (~real).to(torch.uint8).argsort(dim=1, stable=True))


def _pack_in_one_row(prompt: Tensor, prompt_mask: Tensor, completion: Tensor, completion_mask: Tensor) -> _Rows:
    """All texts behind each other. Models of transformers see by the positions where one ends, and attend to none but
    their own."""
    real = torch.cat((prompt_mask, completion_mask), 1)
    inside = real.long().cumsum(1)
    before = inside[:, prompt.shape[1] :] - 2
    lengths = inside[:, -1]
    starts = (lengths.cumsum(0) - lengths)[:, None]
    return _Rows(
        torch.cat((prompt, completion), 1)[real][None],
        (before.clamp(min=0) + starts)[completion_mask][None],
        completion[completion_mask][None],
        before < 0,
        (inside - 1)[real][None],
    )


class _Measure:
    """From logits [..., vocabulary] and tokens [...] to their log-probabilities, and to entropies or nothing."""

    def __init__(self, temperature: float, entropy: bool) -> None:
        self.temperature, self.entropy = temperature or 1.0, entropy

    def __call__(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        scores = wide(logits) / self.temperature
        total = scores.logsumexp(-1)
        found = scores.gather(-1, tokens[..., None])[..., 0] - total
        if not self.entropy:
            return (found,)
        # A token that cannot be has no part in it; its score is -inf, and 0 x -inf would be NaN.
        share = (scores - total[..., None]).exp()
        return found, total - (share * torch.where(share > 0, scores, 0.0)).sum(-1)


def _in_parts(function: Callable[..., tuple[Tensor, ...]], x: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """`function(x, tokens)`, a few positions at a time, which a backward pass computes again.

    `x` is [rows, positions, ...] and `tokens` [rows, positions].
    """
    width = getattr(function, "outputs", x.shape[-1])
    size = max(1, AT_ONCE // width)
    flat, flat_tokens = x.flatten(0, 1), tokens.flatten()
    if len(flat) <= size:
        return tuple(value.view_as(tokens) for value in function(flat, flat_tokens))
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    parts = [
        checkpoint(function, part, wanted, **options)
        for part, wanted in zip(flat.split(size), flat_tokens.split(size), strict=True)
    ]
    return tuple(torch.cat(values).view_as(tokens) for values in zip(*parts, strict=True))


class _HeadMeasure:
    """A head, and what is measured of its logits."""

    def __init__(self, forward: Callable[[Tensor], Tensor], outputs: int, measure: _Measure) -> None:
        self._forward, self.outputs, self._measure = forward, outputs, measure

    def __call__(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        return self._measure(self._forward(hidden), tokens)


def _through_head(network: nn.Module, head: nn.Linear, rows: _Rows, measure: _Measure) -> tuple[Tensor, ...]:
    """Values of the positions that are wanted, measured where the head is called."""
    forward, inside = head.forward, not _changes_logits(network)
    returned: list[tuple[Tensor, int]] = []

    def measure_inside(hidden: Tensor) -> Tensor:
        wanted = _at(hidden, rows.positions)
        if not inside:
            return forward(wanted)
        through_head = _HeadMeasure(_summing_widely(head, forward), head.out_features, measure)
        values = _in_parts(through_head, wanted, rows.targets)
        returned.append((stacked := torch.stack(values, -1), stacked._version))
        return stacked  # in place of logits, so that what the network returns leads back through it, as FSDP needs

    with _replaced_forward(head, measure_inside):
        logits = _logits(network, rows.tokens, rows.position_ids)
    if not inside:
        return _in_parts(measure, logits, rows.targets)
    if len(returned) == 1 and logits is returned[0][0] and logits._version == returned[0][1]:
        return logits.unbind(-1)
    # The network changes the logits in a way that is not known here, so they must be made.
    return _in_parts(measure, _at(_logits(network, rows.tokens, rows.position_ids), rows.positions), rows.targets)


def _summing_widely(head: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A head whose weight may be bf16: the gradients of many parts are summed in float32, where in bf16 the later ones
    would be rounded away."""
    weight, bias = head.weight, head.bias
    is_narrow = weight.dtype in (torch.bfloat16, torch.float16)
    if not is_narrow or not weight.requires_grad or type(head).forward is not nn.Linear.forward:
        return forward
    wide, dtype = weight.float(), weight.dtype
    return lambda hidden: linear(hidden, wide.to(dtype), bias)


def _plain_head(network: nn.Module) -> nn.Linear | None:
    """The head, where it is a linear layer and no more; a layer with adapters is more."""
    find: Callable[[], nn.Module | None] | None = getattr(network, "get_output_embeddings", None)
    head = find() if find is not None else None
    return head if isinstance(head, nn.Linear) and not any(True for _ in head.children()) else None


def _changes_logits(network: nn.Module) -> bool:
    config = text_config(network)
    return any(getattr(config, name, None) is not None for name in _CHANGING_LOGITS)


@contextmanager
def _replaced_forward(head: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    own = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


def _logits(network: nn.Module, tokens: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """All logits [rows, width, vocabulary]."""
    accepted = forward_arguments(network)
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    if position_ids is not None:
        if "position_ids" not in accepted or "past_key_values" not in accepted:
            raise UserError(
                f"{type(network).__name__} cannot be called without padding; use a model of transformers, or pad its "
                "rows"
            )
        options["position_ids"] = position_ids
    out = network(tokens, **options)
    logits: Tensor = out if isinstance(out, Tensor) else out.logits
    return logits


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """What `values` [rows, width, size] has at `positions` [rows, any]."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))
