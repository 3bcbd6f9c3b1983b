"""Reading prompts and then token by token gives the logits of whole rows, for every kind of network."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from language_toys import TOKENS, logits_of, native, of_transformers
from samestep.core.errors import UserError
from samestep.models.decoding import left_pad, open_decoder, position_limit

PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11]]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "native": (native, torch.float64),
    "llama": (lambda: of_transformers("llama"), torch.float64),
    "llama, eager": (lambda: of_transformers("llama", "eager"), torch.float64),
    "gpt2": (lambda: of_transformers("gpt2"), torch.float64),
    "qwen2": (lambda: of_transformers("qwen2"), torch.float64),
    "gemma": (lambda: of_transformers("gemma"), torch.float64),
    "gemma2": (lambda: of_transformers("gemma2", "eager"), torch.float32),
}


def test_left_padding() -> None:
    tokens, mask = left_pad(PROMPTS, pad=2)
    assert tokens.tolist() == [[3, 4, 5, 6, 7], [2, 2, 2, 2, 8], [2, 2, 9, 10, 11]]
    assert mask is not None
    assert mask.tolist() == [[True] * 5, [False] * 4 + [True], [False] * 2 + [True] * 3]
    assert left_pad([[1, 2], [3, 4]])[1] is None, "nothing is padded"


@pytest.mark.parametrize("prompts", [PROMPTS, [[3, 4], [5, 6]]], ids=["padded", "equal"])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_piece_by_piece(name: str, prompts: list[list[int]]) -> None:
    check_pieces(name, prompts, fixed=False)


@pytest.mark.parametrize("prompts", [PROMPTS, [[3, 4], [5, 6]]], ids=["padded", "equal"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "gemma2"])
@torch.no_grad()
def test_calls_that_differ_in_the_contents_of_tensors_alone(name: str, prompts: list[list[int]]) -> None:
    check_pieces(name, prompts, fixed=True)


def check_pieces(name: str, prompts: list[list[int]], fixed: bool) -> None:
    build, dtype = NETWORKS[name]
    network = build().to(dtype)
    written = torch.randint(TOKENS, (len(prompts), 6), generator=torch.Generator().manual_seed(2))
    logits = read(network, prompts, written, fixed)
    tolerance = 1e-9 if name == "native" else 1e-5  # transformers' norms are in float32 whatever they are given
    for number, prompt in enumerate(prompts):
        row = torch.tensor([prompt + written[number].tolist()])
        wanted = logits_of(network, row)[0, len(prompt) - 1 :]
        torch.testing.assert_close(logits[number], wanted, rtol=0, atol=tolerance)


def read(network: nn.Module, prompts: list[list[int]], written: Tensor, fixed: bool = False) -> Tensor:
    tokens, mask = left_pad(prompts)
    decoder = open_decoder(network, mask, width=tokens.shape[1], new_tokens=written.shape[1])
    first = decoder(tokens)
    if fixed:
        assert decoder.fix()
    return torch.stack([first, *(decoder(column) for column in written.split(1, 1))], 1)


@torch.no_grad()
def test_a_sliding_window_cannot_be_fixed() -> None:
    tokens, mask = left_pad(PROMPTS)
    decoder = open_decoder(of_transformers("gemma2", "eager"), mask, width=5, new_tokens=4)
    decoder(tokens)
    assert not decoder.fix()


@torch.no_grad()
def test_a_cache_of_transformers_is_allocated_once() -> None:
    network = of_transformers("llama")
    tokens, mask = left_pad(PROMPTS)
    decoder = open_decoder(network, mask, width=5, new_tokens=4)
    decoder(tokens)
    layer = decoder._cache.layers[0]  # type: ignore[attr-defined]
    place = layer.keys.data_ptr()
    decoder(tokens[:, :1])
    assert layer.keys.shape[2] == 6
    assert layer.keys.data_ptr() == place


def test_limits() -> None:
    assert position_limit(native()) == position_limit(of_transformers("llama")) == 64
    assert position_limit(of_transformers("gpt2")) == 64
    assert position_limit(nn.Linear(1, 1)) is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="Linear cannot generate"):
        open_decoder(nn.Linear(1, 1), None, width=1, new_tokens=1)
    with pytest.raises(UserError, match="NaN for padded prompts in float64"):
        read(of_transformers("gemma2", "eager").double(), PROMPTS, torch.zeros(3, 1, dtype=torch.int64))
