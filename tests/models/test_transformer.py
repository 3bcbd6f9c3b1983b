"""The transformer against a second implementation that shares nothing with it but the weights."""

import cmath
import math

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.transformer import Transformer, TransformerConfig

SHAPES = {
    "plain": {},
    "causal": {"causal": True},
    "grouped": {"n_kv_heads": 2},
    "grouped, causal": {"n_kv_heads": 2, "causal": True},
    "one key head, causal": {"n_kv_heads": 1, "causal": True},
    "padded embedding": {"embedding_size": 64},
}


def small(**changes: object) -> TransformerConfig:
    fields = {"d_model": 32, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 48, "vocab_size": 50, "init_std": 0.2}
    return TransformerConfig(**{**fields, **changes})  # type: ignore[arg-type]


def build(config: TransformerConfig, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config)


def some_tokens(config: TransformerConfig, rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


# ---- the second implementation: one row, one position, one head at a time; positions as complex rotations


def rotated(vector: Tensor, position: int, theta: float) -> list[complex]:
    half = len(vector) // 2
    pairs = [complex(vector[i], vector[half + i]) for i in range(half)]
    return [pair * cmath.exp(1j * position * theta ** (-2 * i / (2 * half))) for i, pair in enumerate(pairs)]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / math.sqrt(float((x * x).sum()) / len(x) + eps) * weight


def attended(queries: Tensor, keys: Tensor, values: Tensor, config: TransformerConfig) -> Tensor:
    size, length = config.head_size, len(queries)
    out = torch.zeros(length, config.d_model, dtype=queries.dtype)
    for head in range(config.n_heads):
        shared = head * config.kv_heads // config.n_heads
        here, there = slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size)
        for i in range(length):
            query = rotated(queries[i, here], i, config.rope_theta)
            seen = range(i + 1 if config.causal else length)
            scores = []
            for j in seen:
                key = rotated(keys[j, there], j, config.rope_theta)
                scores.append(sum((a * b.conjugate()).real for a, b in zip(query, key, strict=True)) / math.sqrt(size))
            odds = torch.tensor(scores, dtype=queries.dtype).softmax(0)
            for j in seen:
                out[i, here] += odds[j] * values[j, there]
    return out


def by_hand(weights: dict[str, Tensor], tokens: Tensor, config: TransformerConfig) -> Tensor:
    w = {name.removeprefix("transformer."): value.double() for name, value in weights.items()}
    x = torch.stack([w["wte.weight"][token] for token in tokens.tolist()])
    for layer in range(config.n_layers):
        block = {k.removeprefix(f"blocks.{layer}."): v for k, v in w.items() if k.startswith(f"blocks.{layer}.")}
        y = torch.stack([normed(row, block["attn_norm.weight"], config.rms_norm_eps) for row in x])
        q, k, v = (y @ block[f"{name}_proj.weight"].T for name in "qkv")
        x = x + attended(q, k, v, config) @ block["attn_out.weight"].T
        y = torch.stack([normed(row, block["ff_norm.weight"], config.rms_norm_eps) for row in x])
        gate = y @ block["ff_proj.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * (y @ block["up_proj.weight"].T)) @ block["ff_out.weight"].T
    y = torch.stack([normed(row, w["ln_f.weight"], config.rms_norm_eps) for row in x])
    return y @ w["ff_out.weight"].T


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_logits_agree_with_a_second_implementation(changes: dict[str, object]) -> None:
    config = small(**changes)
    model, tokens = build(config), some_tokens(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)  # a norm weight that is not one
        logits = model(tokens)
    expected = torch.stack([by_hand(model.state_dict(), row, config) for row in tokens])
    assert logits.dtype == torch.float32
    assert expected.abs().max() > 1, "the comparison must not be one of near-zeros"
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=0)


def test_float64_agrees_to_float64() -> None:
    config = small(n_kv_heads=2)
    model, tokens = build(config).double(), some_tokens(config)
    expected = torch.stack([by_hand(model.state_dict(), row, config) for row in tokens])
    torch.testing.assert_close(model(tokens), expected, atol=1e-11, rtol=1e-11)


def test_bf16_autocast_stays_near_and_trains() -> None:
    config = small(init_std=0.05)
    model, tokens = build(config), some_tokens(config)
    plain = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(tokens)
    assert cast.dtype == torch.bfloat16
    assert (cast - plain).abs().max() < 0.05 * plain.abs().max()
    cast.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_causal_and_bidirectional_attention() -> None:
    for causal in (True, False):
        config = small(causal=causal)
        model, tokens = build(config), some_tokens(config, rows=1)
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % config.vocab_size
        moved = (model(tokens) - model(changed)).abs().amax(-1)[0]
        assert bool((moved[:-1] == 0).all()) is causal
        assert moved[-1] > 0


PUBLISHED = {"attn_norm", "ff_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"}


def test_parameter_names_are_the_published_ones() -> None:
    names = set(build(small()).state_dict())
    expected = {f"transformer.{part}.weight" for part in ("wte", "ln_f", "ff_out")}
    expected |= {f"transformer.blocks.{i}.{part}.weight" for i in range(2) for part in PUBLISHED}
    assert names == expected


def llada_8b() -> TransformerConfig:
    return TransformerConfig(
        d_model=4096, n_layers=32, n_heads=32, mlp_hidden_size=12288, vocab_size=126464, max_sequence_length=4096
    )


def test_llada_8b_has_the_published_size() -> None:
    with torch.device("meta"):
        model = Transformer(llada_8b())
    assert sum(p.numel() for p in model.parameters()) == 8_015_581_184
    assert model(torch.zeros(1, 8, dtype=torch.int64, device="meta")).shape == (1, 8, 126464)


def test_built_on_meta_then_drawn_equals_built_at_once() -> None:
    config = small()
    with torch.device("meta"):
        late = Transformer(config)
    late.to_empty(device="cpu")
    torch.manual_seed(0)
    late.initialise()
    at_once = build(config, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(late.parameters(), at_once.parameters(), strict=True))
    assert torch.equal(late(some_tokens(config)), at_once(some_tokens(config)))
    assert not list(late.buffers())


def test_fresh_weights_follow_the_seed_and_the_rule() -> None:
    config = small(d_model=128, mlp_hidden_size=256, n_layers=8, init_std=0.02)
    first, again, other = build(config, 0), build(config, 0), build(config, 1)
    assert torch.equal(first.transformer.wte.weight, again.transformer.wte.weight)
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)
    weights = dict(first.transformer.blocks[3].named_parameters())
    for name, std in (("q_proj", 0.02), ("up_proj", 0.02), ("attn_out", 0.005), ("ff_out", 0.005)):
        assert float(weights[f"{name}.weight"].detach().std()) == pytest.approx(std, rel=0.05)
    assert bool((first.transformer.ln_f.weight == 1).all())


def test_shard_units_are_the_blocks() -> None:
    model = build(small())
    assert model.shard_units == list(model.transformer.blocks)
    assert sum(isinstance(unit, nn.Module) for unit in model.shard_units) == 2


def test_traces_without_a_graph_break() -> None:
    config = small(n_kv_heads=2)
    model, tokens = build(config), some_tokens(config)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_heads": 5}, "d_model=32 and n_heads=5"),
        ({"n_heads": 32}, "even size"),
        ({"n_kv_heads": 3}, "divisor of n_heads=4"),
        ({"n_kv_heads": 0}, "n_kv_heads must be a whole number of at least 1 or null, not 0"),
        ({"embedding_size": 10}, "at least vocab_size=50"),
        ({"n_layers": 0}, "n_layers must be a whole number of at least 1, not 0"),
        ({"rope_theta": 0.0}, "rope_theta must be a number above 0, not 0.0"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps must be a number above 0, not 0.0"),
        ({"init_std": 0.0}, "init_std must be a number above 0, not 0.0"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        small(**changes)


def test_too_long_a_sequence_is_refused() -> None:
    config = small(max_sequence_length=8)
    with pytest.raises(UserError, match="max_sequence_length=8"):
        build(config)(some_tokens(config, length=9))
