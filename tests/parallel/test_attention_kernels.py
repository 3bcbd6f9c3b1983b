"""Calls of attention are recorded as they are made, and timed with each kernel that can compute them."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.attention_kernels import (
    KERNELS,
    AttentionCall,
    attention_kernel,
    fastest_kernel,
    recording_attention,
)
from toys import made

CPU = torch.device("cpu")
TOKENS = torch.arange(21).reshape(3, 7) % 11


def test_a_network_is_recorded_with_shapes_strides_and_options() -> None:
    shape = TransformerConfig(d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, mlp_hidden_size=32, vocab_size=11)
    with recording_attention() as calls:
        made(lambda: Transformer(shape))(TOKENS)
    ((call, count),) = calls.items()
    assert count == 3
    assert [layout[0] for layout in call.inputs] == [(3, 4, 7, 4), (3, 2, 7, 4), (3, 2, 7, 4)]
    assert call.inputs[2][1] == (7 * 8, 4, 8, 1), "values are a view of the projection"
    assert call.mask is None
    assert dict(call.options) == {"dropout_p": 0.0, "is_causal": False, "enable_gqa": True}


@pytest.mark.parametrize("expanded", [False, True])
def test_calls_with_masks_and_expanded_keys_are_timed(expanded: bool) -> None:
    query = torch.ones(2, 4, 5, 8)
    key = torch.ones(2, 1, 5, 8).expand(2, 4, 5, 8) if expanded else query
    mask = torch.ones(5, 5, dtype=torch.bool).expand(2, 1, 5, 5)
    with recording_attention() as calls:
        scaled_dot_product_attention(query, key, key, mask)
        scaled_dot_product_attention(query, key, key, attn_mask=mask)
    assert list(calls.values()) == [2]
    assert fastest_kernel(calls, CPU) == "flash", "the only fused one on a CPU"


def test_where_no_fused_kernel_can_compute_a_call_torch_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "flash", SDPBackend.CUDNN_ATTENTION)  # which a CPU does not have
    with recording_attention() as calls:
        scaled_dot_product_attention(*[torch.ones(2, 4, 5, 8)] * 3)
    assert fastest_kernel(calls, CPU) is None


def test_a_kernel_may_leave_some_calls_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash is faster for what it computes; that it cannot compute the other call costs what cudnn takes for it."""
    seconds = {(4, "flash"): 1.0, (4, "cudnn"): 2.0, (8, "cudnn"): 5.0}

    def known(call: AttentionCall, name: str, device: torch.device) -> float:
        if (call.inputs[0][0][-1], name) not in seconds:
            raise RuntimeError("no such kernel")
        return seconds[call.inputs[0][0][-1], name]

    monkeypatch.setattr("samestep.parallel.attention_kernels._seconds", known)
    with recording_attention() as calls:
        for size in (4, 8):
            scaled_dot_product_attention(*[torch.ones(2, 4, 5, size)] * 3)
    assert fastest_kernel(calls, CPU) == "flash"
    seconds[4, "flash"] = 3.0
    assert fastest_kernel(calls, CPU) == "cudnn"


def test_all_ways_to_call_it_and_none_that_draws_from_the_generator() -> None:
    tensors = [torch.ones(2, 4, 5, 8)] * 3
    with recording_attention() as calls:
        scaled_dot_product_attention(*tensors, None, 0.5, True)
        scaled_dot_product_attention(*tensors, is_causal=True, dropout_p=0.5)
    assert list(calls.values()) == [2]
    before = torch.get_rng_state()
    fastest_kernel(calls, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_of_several_types_are_timed_as_autocast_computes_them() -> None:
    query, value = torch.ones(2, 4, 5, 8), torch.ones(2, 4, 5, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), recording_attention() as calls:
        scaled_dot_product_attention(query, query, value)
    with torch.autocast("cpu", torch.bfloat16):
        assert fastest_kernel(calls, CPU) == "flash"


def test_a_network_that_is_compiled_is_recorded_and_stays_compiled() -> None:
    compiled = torch.compile(lambda x: scaled_dot_product_attention(x, x, x) + 1, backend="eager", fullgraph=True)
    with recording_attention() as calls:
        compiled(torch.ones(2, 4, 5, 8))
    assert sum(calls.values()) == 1
    compiled(torch.ones(2, 4, 5, 8))


def test_a_chosen_kernel_still_leaves_the_others_for_what_it_cannot_do() -> None:
    tensors = [torch.ones(2, 4, 5, 8)] * 3
    with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        scaled_dot_product_attention(*tensors)
    with attention_kernel("cudnn"):
        scaled_dot_product_attention(*tensors)
    with attention_kernel(None):
        scaled_dot_product_attention(*tensors)
