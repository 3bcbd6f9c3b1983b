"""Models whose own code attends in both directions and appends an end token: stated as settings, and compared with the
formulas."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from encoder_toys import DECODERS, TEXTS, backbone_folder, padded, vectors_of
from samestep.core.errors import UserError
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder

END = 2


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def own_code(folder: Path) -> Path:
    change(folder / "config.json", auto_map={"AutoModel": "modeling_own.Own"})
    return folder


def decoder(weights: dict[str, Tensor], config: Any, ids: Tensor, is_causal: bool) -> Tensor:
    """Token vectors [length, width] of one text without padding, from the formulas: rotated queries and keys, shared
    keys and values, root-mean-square norms, gated layers."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    base = config.rope_parameters["rope_theta"]
    angles = torch.outer(torch.arange(len(ids)).double(), base ** -(torch.arange(0, size, 2).double() / size))
    cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))

    def norm(x: Tensor, name: str) -> Tensor:
        return weights[name] * x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()

    def linear(x: Tensor, name: str) -> Tensor:
        found = x @ weights[f"{name}.weight"].T
        return found + weights[f"{name}.bias"] if f"{name}.bias" in weights else found

    def rotated(x: Tensor, name: str) -> Tensor:
        x = norm(x, name) if name in weights else x
        return x * cos + torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1) * sin

    x = weights["embed_tokens.weight"][ids]
    for number in range(config.num_hidden_layers):
        layer = f"layers.{number}"
        y = norm(x, f"{layer}.input_layernorm.weight")
        q, k, v = (linear(y, f"{layer}.self_attn.{part}_proj").view(len(ids), -1, size) for part in "qkv")
        q, k = (rotated(each, f"{layer}.self_attn.{part}_norm.weight") for each, part in ((q, "q"), (k, "k")))
        attended = torch.zeros_like(q)
        for head in range(heads):
            shared = head // (heads // groups)
            for token in range(len(ids)):
                seen = slice(0, token + 1 if is_causal else len(ids))
                scores = k[seen, shared] @ q[token, head] / math.sqrt(size)
                attended[token, head] = scores.softmax(0) @ v[seen, shared]
        x = x + linear(attended.flatten(1), f"{layer}.self_attn.o_proj")
        y = norm(x, f"{layer}.post_attention_layernorm.weight")
        gate, up = (linear(y, f"{layer}.mlp.{part}_proj") for part in ("gate", "up"))
        x = x + linear(gate * gate.sigmoid() * up, f"{layer}.mlp.down_proj")
    return norm(x, "norm.weight")


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_a_decoder_follows_the_formulas(kind: str, attention: str, tmp_path: Path) -> None:
    """Of texts that are padded together, whatever the folder says of `is_causal`; a window of the folder's own does not
    hide tokens from each other."""
    window = {"sliding_window": 3} if kind == "mistral" and attention == "bidirectional" else {}
    window = {**window, "head_dim": 4} if kind == "qwen3" else window
    source = open_encoder(
        own_code(backbone_folder(kind, tmp_path, is_causal=attention != "causal", **window)),
        dtype="float64",
        attention=attention,
    )
    encoder = source.load()
    weights = {name.removeprefix("transformer."): weight for name, weight in encoder.state_dict().items()}
    tokens, mask = padded(source.tokenizer, TEXTS, 30, more=4)
    with torch.no_grad():
        found = encoder.transformer(input_ids=tokens, attention_mask=mask).last_hidden_state
    for row, own, live in zip(found, tokens, mask):
        wanted = decoder(weights, encoder.config, own[live > 0], attention == "causal")
        torch.testing.assert_close(row[: len(wanted)], wanted, rtol=0, atol=1e-5)  # norms are taken in float32


def test_what_the_attention_changes_and_that_it_is_written(tmp_path: Path) -> None:
    folder = own_code(backbone_folder("qwen2", tmp_path / "own"))
    both, causal = (open_encoder(folder, attention=attention) for attention in ("bidirectional", "causal"))
    found, other = (vectors_of(source.load(), source.tokenizer, TEXTS, 30) for source in (both, causal))
    assert torch.cosine_similarity(found, other).max() < 0.95
    write_encoder(tmp_path / "out", both, both.load().state_dict(), "")
    again = open_encoder(tmp_path / "out")
    torch.testing.assert_close(vectors_of(again.load(), again.tokenizer, TEXTS, 30), found)
    assert "auto_map" not in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("qwen2", {}, r"Set own.attention=bidirectional or own.attention=causal .* both directions: .*config.json"),
        ("qwen2", {}, r"names code of its own \(AutoModel: modeling_own.Own\), which is not run, and transformers'"),
        ("bert", {}, r"Give another model, or a copy without auto_map .* \(AutoModel: modeling_own.Own\)"),
        ("bert", {"attention": "causal"}, "Leave out own.attention: it is for llama, .* holds a bert"),
        ("qwen2", {"attention": "both"}, "Set own.attention to bidirectional or causal; it is 'both'"),
    ],
)
def test_code_of_its_own_is_refused_unless_its_meaning_is_stated(
    kind: str, options: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    folder = own_code(backbone_folder(kind, tmp_path))
    with pytest.raises(UserError, match=sentence):
        open_encoder(folder, section="own.", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["qwen2", "bert"])
def test_every_text_ends_with_the_end_token(kind: str, tmp_path: Path) -> None:
    folder = backbone_folder(kind, tmp_path / "own", without_special=True)
    plain, ended = (open_encoder(folder, append_eos=wanted).tokenizer for wanted in (False, True))
    for text in [*TEXTS, "", "list " * 60]:
        short = plain(text, 12)
        assert END not in short.tolist()
        assert ended(text, 12).tolist() == [*short[:11].tolist(), END], "also where the text is cut"
    source = open_encoder(folder, append_eos=True)
    write_encoder(tmp_path / "out", source, source.load().state_dict(), "")
    again = open_encoder(tmp_path / "out").tokenizer
    assert again.encode_all(TEXTS, 12)[1].tolist() == ended.encode_all(TEXTS, 12)[1].tolist()


def test_an_end_token_is_not_appended_twice(tmp_path: Path) -> None:
    folder = backbone_folder("qwen2", tmp_path)
    twice, once = (open_encoder(folder, append_eos=wanted).tokenizer(TEXTS[0], 30) for wanted in (True, False))
    assert twice.tolist() == once.tolist() and once.tolist().count(END) == 1


def test_a_tokenizer_with_code_of_its_own_is_refused_unless_its_meaning_is_stated(tmp_path: Path) -> None:
    folder = backbone_folder("qwen2", tmp_path / "own")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_own.Own", None]})
    with pytest.raises(UserError, match=r"Set append_eos=true or append_eos=false .*own code probably appends an end"):
        open_encoder(folder)
    source = open_encoder(folder, append_eos=True)
    write_encoder(tmp_path / "out", source, source.load().state_dict(), "")
    assert "auto_map" not in (tmp_path / "out" / "tokenizer_config.json").read_text()


def test_a_tokenizer_without_an_end_token_cannot_append_it(tmp_path: Path) -> None:
    folder = backbone_folder("bert", tmp_path, without_special=True)
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UserError, match=r"Leave out append_eos: the tokenizer in .* has no end token"):
        open_encoder(folder, append_eos=True)
